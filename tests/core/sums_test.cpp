// Sums of matrix units, compared with the same sums in 128-bit integers.
#include <algorithm>
#include <cmath>
#include <string>

#include <doctest/doctest.h>

#include <halftone/core/formats/sums.h>
#include <halftone/core/random.h>

#include "../support.h"

namespace halftone::test::sums_test {
namespace {

using Whole = __int128;

/// significand * 2^exponent. A 0 has the exponent of its operand's reading.
struct Exact {
  Whole significand;
  int exponent, read;  // read: where a unit sees the leading bit
};

Exact exact_of(float x, int least) {
  if (x == 0) return {0, 0, -126};
  const int read = std::max(std::ilogb(x), least);
  int exponent = 0;
  const double fraction = std::frexp(double(x), &exponent);
  return {Whole(std::ldexp(fraction, 24)), exponent - 24, read};
}

/// significand * 2^exponent in units of 2^unit, towards 0 or towards -infinity.
Whole in_units(Whole significand, int exponent, int unit, bool floor = false) {
  const int shift = exponent - unit;
  if (shift >= 0) return shift < 80 ? significand << shift : Whole(0);
  const Whole power = -shift < 100 ? Whole(1) << -shift : Whole(0);
  if (power == 0) return floor && significand < 0 ? -1 : 0;
  const Whole quotient = significand / power;
  return quotient - (floor && significand % power != 0 && significand < 0);
}

/// units * 2^unit as a float of `bits` significand bits, towards 0 or to nearest even.
float to_float(Whole units, int unit, int bits, bool nearest) {
  const bool negative = units < 0;
  Whole magnitude = negative ? -units : units;
  int length = 0;
  while (length < 120 && (magnitude >> length) != 0) ++length;
  const int drop = std::max(length - bits, -149 + (24 - bits) - unit);
  if (drop > 0) {
    const Whole kept = drop < 120 ? magnitude >> drop : Whole(0);
    const Whole rest = magnitude - (drop < 120 ? kept << drop : Whole(0));
    const Whole half = Whole(1) << (drop - 1);
    magnitude = kept + (nearest && (rest > half || (rest == half && kept % 2 != 0)));
    unit += drop;
  }
  const double value = std::ldexp(double(magnitude), unit);
  return float(negative ? -value : value);
}

float exact_step(const Accumulator& unit, const std::vector<float>& a, const std::vector<float>& b,
                 float sum) {
  const Exact before = exact_of(sum, -126);
  const bool apart = unit.align == Align::apart;
  std::vector<Exact> products;
  int most = apart ? -1000 : before.read;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const Exact x = exact_of(a[i], unit.least_exponent), y = exact_of(b[i], unit.least_exponent);
    products.push_back({x.significand * y.significand, x.exponent + y.exponent, x.read + y.read});
    most = std::max(most, products.back().read);
  }
  int place = most - (apart ? 24 : unit.fraction);
  Whole total = apart ? 0 : in_units(before.significand, before.exponent, place);
  for (const Exact& product : products)
    total += in_units(product.significand, product.exponent, place);
  if (apart) {
    const int larger = std::max(most, before.read);
    const Whole joined = in_units(total, place, larger - 31, true);
    const Whole old = in_units(before.significand, before.exponent, larger - 24, true);
    place = larger - 31, total = joined + (old << 7);
  }
  return to_float(total, place, unit.grid.significand_bits,
                  unit.rounding == Rounding::nearest_even);
}

class Numbers {
 public:
  /// A number of `bits` significand bits, at most `span` binades from 1; sometimes 0 or subnormal
  /// below 2^least.
  float next(int bits, int least, int span) {
    const uint32_t word = Philox::words(11, count_ / 4)[count_ % 4];
    ++count_;
    if (word % 31 == 0) return 0;
    const int exponent = word % 17 == 0 ? least - 1 - int(word >> 8 & 1)
                                        : int(word >> 8 & 0xffu) % (2 * span + 1) - span;
    const double significand = double((word >> 16 & 0x7fffu) | 0x8000u) / 0x8000;
    const int unit = std::max(exponent, least) - bits + 1;
    const double number = std::ldexp(std::floor(std::ldexp(significand, exponent - unit)), unit);
    return float(word & 1u ? -number : number);
  }

 private:
  uint64_t count_ = 0;
};

TEST_CASE("sums: steps of every matrix unit are exact sums of cut numbers") {
  for (const NamedAccumulator& machine : named_accumulators()) {
    Accumulator unit = machine.accumulator;
    if (unit.scaled > 0 || (unit.align != Align::largest && unit.align != Align::apart)) continue;
    CAPTURE(machine.name);
    for (const auto& [bits, least] : {std::pair{8, -126}, {11, -14}, {4, -6}}) {
      unit.least_exponent = least;
      const Grid grid = grid_of(unit.grid, unit.rounding);
      Numbers numbers;
      int64_t wrong = 0;
      for (int i = 0; i < 20000; ++i) {
        const int span = i % 5 == 0 ? 1 : i % 5 == 1 ? 4 : least == -126 ? 30 : -least + 2;
        std::vector<float> a, b;
        for (int p = 0; p < unit.fused; ++p)
          a.push_back(numbers.next(bits, least, span)),
              b.push_back(numbers.next(bits, least, span));
        float sum = numbers.next(unit.grid.significand_bits, -126, span + i % 9);
        if (i % 7 == 0) {  // cancels all but the last bits
          sum = 0;
          for (int p = 0; p + 1 < unit.fused; p += 2)
            a[std::size_t(p) + 1] = -a[std::size_t(p)], b[std::size_t(p) + 1] = b[std::size_t(p)];
        }
        const float wanted = exact_step(unit, a, b, sum);
        const float got = visit_rounding(unit.rounding, [&]<Rounding r>() {
          return sums::step<r>(unit, grid, unit.fused, sum, [&](int32_t p) {
            return sums::Factors{a[std::size_t(p)], b[std::size_t(p)]};
          });
        });
        wrong += std::bit_cast<uint32_t>(got) != std::bit_cast<uint32_t>(wanted) &&
                 !(got == 0 && wanted == 0);
      }
      CHECK(wrong == 0);
    }
  }
}

/// A step whose operands have a scale after each unit.scaled numbers.
float exact_scaled_step(const Accumulator& unit, const std::vector<float>& a,
                        const std::vector<float>& b, float sum) {
  const bool together = unit.align == Align::scales;
  const auto block = std::size_t(unit.scaled) + 1;
  const Exact before = exact_of(sum, -126);
  std::vector<Exact> terms;
  for (std::size_t first = 0; first < a.size(); first += block) {
    const int least = together ? unit.least_exponent : -127;
    const Exact x = exact_of(a[first + block - 1], least),
                y = exact_of(b[first + block - 1], least);
    for (std::size_t i = first; i + 1 < first + block; i += together ? 16 : 1) {
      Exact term{0, x.exponent + y.exponent - 24, x.read + y.read};
      for (std::size_t p = i; p < i + (together ? 16 : 1); ++p) {
        term.significand += Whole(std::ldexp(double(a[p]) * double(b[p]), 24));
        if (!together)
          term.read +=
              exact_of(a[p], unit.least_exponent).read + exact_of(b[p], unit.least_exponent).read;
      }
      // Scales have few bits.
      term.significand *= (x.significand >> 12) * (y.significand >> 12), term.exponent += 24;
      terms.push_back(term);
    }
  }
  int most = before.read;
  for (const Exact& term : terms) most = std::max(most, term.read);
  const int place = most - unit.fraction;
  Whole total = in_units(before.significand, before.exponent, place);
  for (const Exact& term : terms) total += in_units(term.significand, term.exponent, place);
  return to_float(total, place, 24, false);
}

TEST_CASE("sums: steps of operands with scales are exact sums of cut numbers") {
  for (const NamedAccumulator& machine : named_accumulators()) {
    const Accumulator unit = sums::counting_scales(machine.accumulator);
    if (unit.scaled == 0) continue;
    CAPTURE(machine.name);
    const bool e2m1 = unit.align == Align::scales, powers = unit.scaled == 32;
    const Grid grid = grid_of(unit.grid, unit.rounding);
    Numbers numbers;
    int64_t wrong = 0;
    for (int i = 0; i < 20000; ++i) {
      std::vector<float> a, b;
      const int span = i % 3 == 0 ? 2 : i % 3 == 1 ? 12 : powers ? 60 : 8;
      for (int p = 0; p < unit.fused; ++p)
        for (std::vector<float>* const x : {&a, &b}) {
          const bool scale = p % (unit.scaled + 1) == unit.scaled;
          float next = scale  ? std::abs(numbers.next(powers ? 1 : 4, powers ? -127 : -6, span))
                       : e2m1 ? numbers.next(2, 0, 2)
                              : numbers.next(4, -6, i % 2 ? 8 : 2);
          if (scale && powers && next == 0) next = i % 2 ? 0x1p-127f : 1.0f;
          x->push_back(next);
        }
      const float sum = numbers.next(24, -126, span + i % 40);
      const float wanted = exact_scaled_step(unit, a, b, sum);
      const float got = visit_rounding(unit.rounding, [&]<Rounding r>() {
        return sums::scaled_step<r>(unit, grid, unit.fused, sum, [&](int32_t p) {
          return sums::Factors{a[std::size_t(p)], b[std::size_t(p)]};
        });
      });
      wrong += std::bit_cast<uint32_t>(got) != std::bit_cast<uint32_t>(wanted) &&
               !(got == 0 && wanted == 0);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("sums: steps that were computed by hand") {
  const auto step = [](std::string_view name, std::vector<float> a, std::vector<float> b,
                       float sum) {
    for (const NamedAccumulator& machine : named_accumulators())
      if (machine.name == name)
        return visit_rounding(machine.accumulator.rounding, [&]<Rounding r>() {
          return sums::step<r>(machine.accumulator,
                               grid_of(machine.accumulator.grid, machine.accumulator.rounding),
                               int32_t(a.size()), sum, [&](int32_t p) {
                                 return sums::Factors{a[std::size_t(p)], b[std::size_t(p)]};
                               });
        });
    return NAN;
  };
  // 2^-24 is below the 23 bits that a V100 keeps under a sum of 1; an H100 keeps it, and cuts.
  CHECK(step("v100-mma", {0x1p-12f, -1}, {0x1p-12f, 1}, 1) == 0);
  CHECK(step("h100-mma", {0x1p-12f, -1}, {0x1p-12f, 1}, 1) == 0x1p-24f);
  CHECK(step("h100-mma", {0x1p-12f}, {0x1p-12f}, 1) == 1);
  // 13 bits: 1 + 2^-13 stays, 2^-14 is lost.
  CHECK(step("h100-wgmma-f8", {1, 0x1p-6f}, {1, 0x1p-7f}, 0) == 1 + 0x1p-13f);
  CHECK(step("h100-wgmma-f8", {1, 0x1p-7f}, {1, 0x1p-7f}, 0) == 1);
  // The sum is floored at 24 bits below the product 4: 1 + 2^-23 becomes 1 + 2^-22 below 0.
  CHECK(step("mi300-mfma", {4}, {1}, -1 - 0x1p-23f) == 3 - 0x1p-22f);
  // In order: the second product first.
  CHECK(step("avx512-bf16", {1, -0x1p24f}, {1, 1}, 0x1p24f) == 1);
  CHECK(step("avx512-bf16", {-0x1p24f, 1}, {1, 1}, 0x1p24f) == 0);
  CHECK(step("avx512-bf16", {0x1p-70f}, {0x1p-70f}, 0) == 0);  // subnormal
  // Halves: 2^24 + 1 is lost in the even half, then both halves join.
  CHECK(step("amx-bf16", {0x1p24f, 3, 1, 0}, {1, 1, 1, 1}, 0) == 0x1p24f + 4);
  CHECK(std::bit_cast<uint32_t>(step("h100-mma", {INFINITY, -INFINITY}, {1, 1}, 0)) == 0x7fffffffu);
  CHECK(step("h100-mma", {-INFINITY, 1}, {1, 1}, 0) == -INFINITY);
  CHECK(std::bit_cast<uint32_t>(step("amx-bf16", {0}, {INFINITY}, 0)) == 0x7fffffffu);
}

}  // namespace
}  // namespace halftone::test::sums_test
