// Quantizers on tensors: every instruction set gives the same bits for every rounding and scaling,
// as every layout does (that backends give the reference's: tests/kernels/quantize_test.cpp); the
// meaning of the scales, compared with loops written here; rotations, skipping, random numbers, and
// the operation's gradient.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include <doctest/doctest.h>

#include <halftone/core/formats/block_scale.h>
#include <halftone/halftone.h>

#include "../core/quantizer_cases.h"
#include "../support.h"
#include "backends/simd_levels.h"
#include "simd_levels.h"

namespace halftone::test::quantize_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Magnitudes over many binades, zeros of both signs, and some values that no scale brings into
/// range.
std::vector<float> awkward(int64_t count, uint64_t seed, bool special) {
  Numbers numbers(seed);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const float x = std::ldexp(numbers.uniform(-2, 2), int(numbers.word() % 24) - 16);
    const uint64_t kind = numbers.word() % 997;
    values.push_back(kind == 0              ? 0.0f
                     : kind == 1            ? -0.0f
                     : special && kind == 2 ? infinity
                     : special && kind == 3 ? -infinity
                     : special && kind == 4 ? nan
                     : special && kind < 9  ? std::numeric_limits<float>::max()
                     : special && kind < 12 ? 0x1p-149f
                                            : x);
  }
  return values;
}

std::vector<Quantizer> scalings() {
  std::vector<Quantizer> all = usual_quantizers();
  std::ranges::copy(more_quantizers(), std::back_inserter(all));
  return all;
}

template <class Body> void each_rounding(Quantizer quantizer, const Body& body) {
  for (int r = 0; r < rounding_count; ++r) {
    quantizer.rounding = Rounding(r);
    INFO(described(quantizer));
    body(quantizer);
  }
}

TEST_CASE("quantize: short dtypes represent the values that they promise") {
  for (const DType dtype : {bf16, f16}) {
    const Tensor x = cast(from_vector(awkward(40 * 96, 6, false), {40, 96}), dtype);
    for (const Quantizer& plain : scalings())
      each_rounding(plain, [&](const Quantizer& quantizer) {
        if (!quantizer.exact_in(dtype)) return;
        INFO(name(dtype));
        const QuantizeCall call{.quantizer = quantizer, .key = {12, 0}};
        const Tensor y = quantized(x, call);
        CHECK(y.dtype() == dtype);
        CHECK(bits_of(y) == bits_of(quantized(cast(x, f32), call)));
      });
  }
}

TEST_CASE("quantize: every instruction set gives the same bits") {
  const std::vector<float> x = awkward(3000, 7, true);
  for (const Quantizer& plain : scalings())
    each_rounding(plain, [&](const Quantizer& quantizer) {
      const QuantizeNumbers n = numbers_of(quantizer);
      const bool blocks = n.per == Scaling::Per::block;
      std::vector<uint32_t> first;
      each_level([&](const simd::Kernels& k) {
        std::vector<float> y(x.size());
        if (blocks)
          k.quantize_blocks(
              n, 3, {5, 6},
              {.rows = 3, .columns = 1000, .row_step = 1000, .number_step = 1000, .first = 2},
              x.data(), y.data());
        else
          k.quantize(n, scale_per_tensor(1.37f), {5, 6}, 2, x.data(), y.data(), int64_t(x.size()));
        if (first.empty()) first = bits_of(y);
        CHECK(bits_of(y) == first);
        CHECK(k.largest_magnitude(x.data(), 3000) > 0x7f800000u);
      });
    });
}

TEST_CASE("quantize: lengths near vectors, from any word of the random numbers on") {
  Quantizer quantizer{.grid = formats::e2m1, .rounding = Rounding::stochastic};
  const QuantizeNumbers n = numbers_of(quantizer);
  const std::vector<float> x = awkward(9001, 8, false);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t length : lengths())
      for (const uint64_t first : {0u, 1u, 2u, 3u, 5u}) {
        std::vector<float> y(std::size_t(length) + 1, 77.0f), wanted = y;
        k.quantize(n, Scale{}, {9, 1}, first, x.data(), y.data(), length);
        for (int64_t i = 0; i < length; ++i) {
          const uint64_t element = first + uint64_t(i);
          const uint32_t word = Philox::words(9, 1 + element / 4)[element % 4];
          wanted[std::size_t(i)] =
              round_to(quantizer.grid, x[std::size_t(i)], Rounding::stochastic, word);
        }
        CHECK(bits_of(y) == bits_of(wanted));
      }
  });
}

/// A block's values by the definition of MX: the nearest number of the grid times 2^e, in f64.
TEST_CASE("quantize: an MX block holds the nearest multiples of its power of two") {
  const std::vector<float> x = awkward(320, 9, false);
  const Tensor y = quantize(from_vector(x, {10, 32}), "mxfp6");
  const std::vector<double> got = y.to_vector<double>();
  for (std::size_t block = 0; block < 10; ++block) {
    double amax = 0;
    for (std::size_t i = 0; i < 32; ++i) amax = std::max(amax, std::abs(double(x[block * 32 + i])));
    const int e = std::ilogb(amax) - 2;  // 7.5 has the exponent 2
    for (std::size_t i = block * 32; i < block * 32 + 32; ++i) {
      const double unit = std::ldexp(double(x[i]), -e), q = std::ldexp(got[i], -e);
      CHECK(std::abs(q) <= 7.5);
      if (std::abs(unit) <= 7.5)
        CHECK(std::abs(q - unit) <= std::max(std::ldexp(std::abs(unit), -4), 0.0625));
      else CHECK(std::abs(q) == 7.5);
    }
  }
}

TEST_CASE("quantize: a scale of the row is the scale of a tensor that has only this row") {
  const Tensor x = from_vector(awkward(5 * 80, 13, true), {5, 80});
  Quantizer of_tensor = *quantizer_named("nvfp4"), of_row = of_tensor;
  of_row.scaling.tensor_level = false, of_row.scaling.row_level = true;
  CHECK(described(of_row) == "e2m1, blocks of 1x16 with e4m3 scales under one of the row");
  const std::vector<uint32_t> y = bits_of(quantize(x, of_row));
  for (int64_t row = 0; row < 5; ++row) {
    const std::vector<uint32_t> alone =
        bits_of(quantize(views::contiguous(views::slice(x, 0, row, 1)), of_tensor));
    CHECK(std::equal(alone.begin(), alone.end(), y.begin() + row * 80));
  }
  CHECK(y != bits_of(quantize(x, of_tensor)));
  const auto refusal = [&](const auto& change) {
    Quantizer changed = of_row;
    change(changed.scaling);
    return message_of<UsageError>([&] { quantize(x, changed); });
  };
  CHECK(refusal([](Scaling& s) { s.rows = 16; }) ==
        "[quantize] scales of blocks are under a scale of the row, and blocks have 16 rows. "
        "Use blocks of one row.");
  CHECK_FALSE(refusal([](Scaling& s) { s.tensor_level = true; }).empty());
  CHECK_FALSE(refusal([](Scaling& s) { s.scale_format = formats::e8m0; }).empty());
}

TEST_CASE("quantize: infinity, NaN and saturation") {
  const Tensor x = from({1, -1000, double(infinity), 3, double(nan), -double(infinity), 0.3, 2});
  const auto y = [&](const Quantizer& quantizer) {
    return quantize(x, quantizer).to_vector<float>();
  };
  const std::vector<float> e4m3 = y({.grid = formats::e4m3});
  CHECK(e4m3[1] == -448);
  CHECK(e4m3[2] == 448);
  CHECK(std::isnan(e4m3[4]));
  CHECK(e4m3[5] == -448);
  const std::vector<float> e5m2 = y({.grid = formats::e5m2});
  CHECK(e5m2[2] == infinity);
  CHECK(e5m2[5] == -infinity);
  // If infinity or NaN would give the scale, it is 1: the others are as without a scale.
  const std::vector<float> scaled = y({.grid = formats::e4m3, .scaling = Scaling::per_tensor()});
  CHECK(bits_of(scaled) == bits_of(e4m3));
  const std::vector<float> blocks = y({.grid = formats::e5m2, .scaling = Scaling::per_block(1, 4)});
  CHECK(blocks[2] == infinity);
  CHECK(std::isnan(blocks[4]));
  CHECK(blocks[3] == 3);
  // Under a scale, finite values saturate also in formats with infinity.
  const Tensor large = from({1000.0, 1});
  Quantizer history{.grid = formats::e5m2, .scaling = Scaling::delayed()};
  const Tensor s = scalar(1000);
  CHECK(quantized(large, {.quantizer = history, .scale = s}).to_vector<float>()[0] ==
        57344.0f * (1 / 1000.0f));
  const Tensor immense = from({3e38, 1});
  CHECK(quantized(immense, {.quantizer = history, .scale = s}).to_vector<float>()[0] ==
        57344.0f * (1 / 1000.0f));
}

TEST_CASE("quantize: layouts do not matter") {
  const Tensor x = from_vector(awkward(4 * 6 * 5 * 32, 10, false), {4, 6, 5, 32});
  for (const Quantizer& plain : scalings())
    each_rounding(plain, [&](const Quantizer& quantizer) {
      const QuantizeCall call{.quantizer = quantizer, .key = {1, 2}};
      const std::vector<uint32_t> wanted = bits_of(quantized(x, call));
      CHECK(bits_of(quantized(views::channels_last(x), call)) == wanted);
      const Tensor turned = views::contiguous(views::transpose(x, 1, 3));
      CHECK(bits_of(quantized(views::transpose(turned, 1, 3), call)) == wanted);
    });
}

TEST_CASE("quantize: in place, and not if a step is skipped") {
  const Tensor x = from_vector(awkward(3 * 64, 11, false), {3, 64});
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    for (const Quantizer& quantizer : scalings()) {
      Tensor kept = x.clone(), changed = x.clone();
      const Tensor yes = scalar(1), no = scalar(0);
      quantize_in_place(kept, {.quantizer = quantizer, .skip = yes});
      CHECK(bits_of(kept) == bits_of(x));
      quantize_in_place(changed, {.quantizer = quantizer, .skip = no});
      CHECK(bits_of(changed) == bits_of(quantized(x, {.quantizer = quantizer})));
    }
  }
  Tensor one = scalar(0.3);
  quantize_in_place(one, {.quantizer = *quantizer_named("e2m1")});
  CHECK(one.item() == 0.5);
}

TEST_CASE("quantize: the largest magnitude is a maximum over calls, and NaN wins") {
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    Tensor amax = scalar(0);
    Backend& kernels = backend_for(amax);
    kernels.largest_magnitude(from({{1.0, -7}, {3, 2}}), amax);
    CHECK(amax.item() == 7);
    kernels.largest_magnitude(cast(from({5.0}), bf16), amax);
    CHECK(amax.item() == 7);
    kernels.largest_magnitude(views::transpose(from({{1.0, -70}, {3, 2}}), 0, 1), amax);
    CHECK(amax.item() == 70);
    kernels.largest_magnitude(from({double(infinity)}), amax);
    CHECK(amax.item() == double(infinity));
    kernels.largest_magnitude(from({1, -double(nan)}), amax);
    CHECK(std::bit_cast<uint32_t>(*amax.data<float>()) == nan_magnitude);
  }
}

TEST_CASE("quantize: rotations are orthogonal, and spread an outlier") {
  const std::vector<float> x = awkward(3 * 128, 12, false);
  for (const int size : {2, 4, 8, 16, 32, 64, 128}) {
    INFO("groups of ", size);
    const Tensor from = from_vector(x, {3, 128});
    Tensor turned = empty_like(from), back = empty_like(from);
    Backend& backend = backend_for(from);
    const Rotation rotation{.size = size, .signs = 0x5a5a5a5a5a5a5a5au};
    backend.rotate(from, rotation, turned);
    backend.rotate(turned, {.size = size, .signs = rotation.signs, .back = true}, back);
    const std::vector<double> y = turned.to_vector<double>(), again = back.to_vector<double>();
    for (std::size_t group = 0; group < x.size(); group += std::size_t(size)) {
      double before = 0, after = 0;
      for (std::size_t i = group; i < group + std::size_t(size); ++i)
        before += double(x[i]) * double(x[i]), after += y[i] * y[i];
      CHECK(after == doctest::Approx(before).epsilon(1e-5));
      for (std::size_t i = group; i < group + std::size_t(size); ++i)
        CHECK(std::abs(again[i] - double(x[i])) <= 1e-6 * std::sqrt(before));
    }
  }
  // The matrix itself: the first number is spread over all elements in equal parts; the last one
  // with signs.
  Tensor first = from({1.0, 0, 0, 0}), last = from({0.0, 0, 0, 1});
  Backend& backend = backend_for(first);
  backend.rotate(first, {.size = 4}, first);
  CHECK(first.to_vector<float>() == std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f});
  backend.rotate(last, {.size = 4, .signs = 8}, last);
  CHECK(last.to_vector<float>() == std::vector<float>{-0.5f, 0.5f, 0.5f, -0.5f});
  // One outlier becomes a part of each number of its group.
  Tensor outlier = zeros({16}), largest = scalar(0);
  outlier.data<float>()[5] = 20;
  backend.rotate(outlier, {.size = 16, .signs = 0x1234}, outlier);
  backend.largest_magnitude(outlier, largest);
  CHECK(largest.item() == 5);
  // Groups are within rows, and numbers that do not fill a group are unchanged.
  Tensor rest = from_vector<float>({1, 0, 3, 1, 0, 5}, {2, 3});
  backend.rotate(rest, {.size = 2}, rest);
  const float half = std::sqrt(0.5f);
  CHECK(rest.to_vector<float>() == std::vector<float>{half, half, 3, half, half, 5});
  // A quantizer rotates forward and back: the result is the input, except for the loss of its grid.
  Quantizer exact{.grid = formats::f32, .hadamard = 4, .hadamard_signs = 0b0110};
  const Tensor whole = from({1.0, 2, 3, 4, -1, 0, 8, 16});
  CHECK(quantize(whole, exact).to_vector<float>() == whole.to_vector<float>());
}

TEST_CASE("quantize: the gradient passes unchanged, also for values that saturated") {
  for (const char* name : {"e2m1", "mxfp4", "nvfp4", "fp8_tensor"}) {
    Tensor x = from({100, -0.01, 3, 0});
    x.set_requires_grad();
    const Tensor y = quantize(x, name), dy = from({1.0, 2, -3, 4});
    y.backward(dy);
    CHECK(x.grad().to_vector<float>() == dy.to_vector<float>());
    CHECK(y.dtype() == f32);
    CHECK(y.requires_grad());
  }
}

TEST_CASE("quantize: stochastic rounding draws from the generator, and repeats with it") {
  const Tensor x = rand({1000});
  Quantizer quantizer{.grid = formats::e2m1, .rounding = Rounding::stochastic};
  manual_seed(3);
  const Tensor a = quantize(x, quantizer), b = quantize(x, quantizer);
  manual_seed(3);
  CHECK(bits_of(quantize(x, quantizer)) == bits_of(a));
  CHECK(bits_of(a) != bits_of(b));
  const RandomKey before = default_generator().state();
  quantize(x, "e2m1");
  CHECK(default_generator().state().offset == before.offset);
  // With one random bit the mean changes: the bit is 0 or a half.
  quantizer.random.bits = 1;
  const Tensor coarse = quantize(full({1000}, 0.2), quantizer);
  for (const float y : coarse.to_vector<float>()) CHECK(y == 0.0f);
}

TEST_CASE("quantize: scales from a history, for several tensors at once") {
  Quantizer quantizer{.grid = formats::e4m3, .scaling = Scaling::delayed(2)};
  Tensor amax = from({2, 7, 0, double(infinity)}), history = zeros({4, 2}), scale = ones({4});
  Tensor position = zeros({4}, i64);
  Backend& backend = backend_for(amax);
  backend.next_scales(quantizer, amax, history, position, scale);
  CHECK(scale.to_vector<float>() == std::vector<float>{224, 64, 1, 1});
  CHECK(amax.to_vector<float>() == std::vector<float>{0, 0, 0, 0});
  CHECK(position.to_vector<int64_t>() == std::vector<int64_t>{1, 1, 1, 0});
  CHECK(history.to_vector<float>() == std::vector<float>{2, 0, 7, 0, 0, 0, 0, 0});
}

TEST_CASE("quantize: all bytes are freed") {
  const int64_t before = memory_report(Device::cpu()).total_now;
  for (const char* name : {"e4m3", "mxfp4", "nvfp4", "fp8_tensor"}) quantize(ones({5, 64}), name);
  CHECK(memory_report(Device::cpu()).total_now == before);
}

}  // namespace
}  // namespace halftone::test::quantize_test

// Power-of-two scales of blocks whose largest magnitude is small, also below 2^-126, where floats
// are subnormal: against their definition in f64, on every backend and instruction set.

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

// Bounds and clips of the CPU's backends and of each instruction set: the bits of the loops in
// core/formats/block_scale.cpp.

namespace halftone::test::backends_clip_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Numbers of many magnitudes; some are zeros, infinite, NaN, or the smallest.
Tensor awkward(int64_t count) {
  Tensor x = randn({count});
  const float special[] = {0, -0.0f, infinity, -infinity, nan, 0x1p-149f};
  for (int64_t i = 0; i < count; ++i) {
    float& value = x.data<float>()[i];
    value = std::ldexp(value, int(i * 7 % 23) - 11);
    if (i % 97 == 60) value = special[i / 97 % 6];
  }
  return x;
}

float bound_of(const Clip& clip, const Tensor& x) {
  Tensor bound = empty({});
  backend_for(x).clip_bound(x, clip, bound);
  return bound.data<float>()[0];
}

TEST_CASE("clip: the backends of the CPU give the bits of the loops") {
  manual_seed(5);
  for (const int64_t n : {1, 2, 255, 256, 257, 4095, 4096, 4097, 12'345, 600'001}) {
    const Tensor x = awkward(n);
    if (n == 12'345) std::fill_n(x.data<float>() + 100, 9000, 0.75f);
    const std::vector<float> values = x.to_vector<float>();
    for (const Clip& clip :
         {Clip{.rms = 0.5}, Clip{.quantile = 1e-9}, Clip{.quantile = 0.5}, Clip{.quantile = 0.9},
          Clip{.quantile = 0.999}, Clip{.quantile = 1}, Clip{}})
      for (const char* name : {"reference", "cpu"}) {
        INFO(name, ", ", n, " numbers");
        const CpuBackendScope scope(name);
        const float wanted = clip_bound(clip, values);
        CHECK(bound_of(clip, x) == wanted);
        Tensor y = empty({n});
        backend_for(x).clip(x, scalar(wanted), y);
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; ++i) {
          const float v = values[std::size_t(i)], got = y.data<float>()[i];
          if (std::isnan(v)) wrong += !std::isnan(got);
          else wrong += got != (std::isinf(v) ? v : std::min(std::max(v, -wanted), wanted));
        }
        CHECK(wrong == 0);
      }
  }
}

TEST_CASE("clip: the backends of the CPU sum in the order of the loops") {
  manual_seed(6);
  for (const int64_t n : {300, 4096, 5000, 20'000, 257 * 4096 + 300}) {
    const Tensor x = randn({n});
    const auto [above, below] = clips_near_the_middle(ordered_squares(x.to_vector<float>()), n);
    for (const char* name : {"reference", "cpu"}) {
      INFO(name, ", ", n, " numbers");
      const CpuBackendScope scope(name);
      CHECK(bound_of(above, x) == 1 + 0x1p-23f);
      CHECK(bound_of(below, x) == 1);
    }
  }
}

TEST_CASE("clip: the bound of no finite number is 0") {
  const Tensor none = from_vector(std::vector<float>{nan, infinity}, {2});
  for (const Clip& clip : {Clip{.rms = 2}, Clip{.quantile = 0.5}}) CHECK(bound_of(clip, none) == 0);
}

TEST_CASE("clip: every instruction set sums in the same order and clips alike") {
  manual_seed(9);
  const std::vector<float> x = awkward(9001).to_vector<float>();
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : lengths()) {
      INFO(n, " numbers");
      std::vector<float> y(std::size_t(n) + 1, 77.0f), wanted = y;
      std::vector<double> squares;
      int64_t numbers = 0, finite = 0;
      for (std::size_t i = 0; i < std::size_t(n); ++i) {
        wanted[i] = clipped(x[i], 1.5f), numbers += std::isfinite(x[i]);
        squares.push_back(finite_square(x[i]));
      }
      k.clip(x.data(), 1.5f, y.data(), n);
      CHECK(bits_of(y) == bits_of(wanted));
      CHECK(k.finite_squares(x.data(), n, finite) == lanes_sum(squares));
      CHECK(finite == numbers);
    }
  });
}

}  // namespace
}  // namespace halftone::test::backends_clip_test
