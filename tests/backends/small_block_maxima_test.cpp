// Power-of-two scales of blocks whose largest magnitude is small, also below 2^-126, where floats
// are subnormal: against their definition in f64, on every backend and instruction set.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <halftone/core/formats/quantizer.h>

#include "backends/float_bits.h"
#include "simd_levels.h"

namespace halftone::test::small_block_maxima_test {
namespace {

constexpr ScaleRule rules[]{ScaleRule::floor, ScaleRule::ceil, ScaleRule::rceil, ScaleRule::even};

/// Returns E of the definitions at ScaleRule: log2 of a, rounded down, or up with `up`.
int exponent_of(double a, bool up) {
  const int e = std::ilogb(a);
  return e + int(up && std::ldexp(1.0, e) != a);
}

int exponent_by_definition(const NumberFormat& grid, ScaleRule rule, float amax) {
  const int of_max = std::ilogb(grid.max);
  const double a = amax;
  int e = 0;
  switch (rule) {
    case ScaleRule::floor: e = exponent_of(a, false) - of_max; break;
    case ScaleRule::ceil: e = exponent_of(a, true) - of_max; break;
    case ScaleRule::rceil: e = exponent_of(double(amax / grid.max), true); break;
    case ScaleRule::even: {
      const double unit = std::ldexp(1.0, std::ilogb(a) - grid.significand_bits + 1);
      e = exponent_of(std::floor(a / unit + 0.5) * unit, false) - of_max;
      break;
    }
  }
  return std::clamp(e, -127, 127);
}

Quantizer blocks_of(const NumberFormat& grid, ScaleRule rule) {
  Quantizer quantizer{.grid = grid, .scaling = Scaling::per_block(1, 32)};
  quantizer.scaling.rule = rule;
  return quantizer;
}

TEST_CASE("scales of small blocks have the exponents of their definition") {
  const NumberFormat grids[]{formats::int8, NumberFormat::integer(4), formats::e2m1, formats::e4m3};
  for (const NumberFormat& grid : grids)
    for (const ScaleRule rule : rules) {
      CAPTURE(described(grid));
      CAPTURE(name(rule));
      const QuantizeNumbers n = numbers_of(blocks_of(grid, rule));
      int64_t wrong = 0;
      const auto check = [&](uint32_t bits) {
        const float amax = std::bit_cast<float>(bits);
        if (amax / grid.max == 0) return;  // rceil has no exponent
        wrong += scale_exponent(n, amax) != exponent_by_definition(grid, rule, amax);
      };
      for (uint32_t bits = 1; bits < 0x2000000; bits += 997) check(bits);
      for (const uint32_t edge : {0x400000u, 0x7f0000u, 0x7f8000u, 0x800000u, 0x1000000u})
        for (uint32_t bits = edge - 300; bits < edge + 300; ++bits) check(bits);
      for (uint32_t bits = 0x800000; bits < 0x7f800000; bits += 99991) check(bits);
      CHECK(wrong == 0);
    }
}

TEST_CASE("blocks of int8 below 2^-126 are the nearest multiples of their power of two") {
  const NumberFormat& grid = formats::int8;
  std::vector<float> x;
  const uint32_t maxima[]{0x3fffffu, 0x400000u, 0x400001u, 0x600000u, 0x7effffu, 0x7f0000u,
                          0x7f7fffu, 0x7f8000u, 0x7fffffu, 0x800000u, 0x800001u, 0xc00000u};
  for (const uint32_t bits : maxima)
    for (uint32_t i = 0; i < 32; ++i)
      x.push_back(std::bit_cast<float>(bits - i * (bits / 33)) * (i % 2 == 0 ? 1.0f : -1.0f));
  for (const ScaleRule rule : rules) {
    CAPTURE(name(rule));
    const Quantizer quantizer = blocks_of(grid, rule);
    std::vector<float> wanted;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const int e = exponent_by_definition(grid, rule, x[i / 32 * 32]);
      const double scaled = std::ldexp(double(x[i]), -e),
                   nearest = std::nearbyint(scaled * 64) / 64, max = grid.max;
      wanted.push_back(float(std::ldexp(std::clamp(nearest, -max, max), e)));
    }
    const Tensor from = from_vector(x, {std::ssize(maxima), 32});
    for (const char* backend : {"reference", "cpu"}) {
      CAPTURE(backend);
      const CpuBackendScope scope(backend);
      CHECK(bits_of(quantized(from, {.quantizer = quantizer})) == bits_of(wanted));
    }
    each_level([&](const simd::Kernels& k) {
      std::vector<float> y(x.size());
      for (std::size_t first = 0; first < x.size(); first += 32)
        k.quantize_blocks(numbers_of(quantizer), 0, {},
                          {.rows = 1, .columns = 32, .row_step = 32, .number_step = 32, .first = 0},
                          x.data() + first, y.data() + first);
      CHECK(bits_of(y) == bits_of(wanted));
    });
  }
}

}  // namespace
}  // namespace halftone::test::small_block_maxima_test
