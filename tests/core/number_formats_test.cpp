// Rounding onto grids against its definition in f64, which does not use bits: every number of every
// small format, every midpoint and their neighbors, floats of all magnitudes, all roundings.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test::number_formats_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
bool same(float a, float b) { return bits_of(a) == bits_of(b) || (a != a && b != b); }

/// A sequence that depends only on the seed.
class Words {
 public:
  explicit Words(uint64_t seed) : state_(seed) {}
  uint32_t operator()() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return uint32_t((z ^ (z >> 31)) >> 32);
  }

 private:
  uint64_t state_;
};

/// Returns whether a magnitude at the fraction `part` between n units and n + 1 is rounded up.
bool goes_away(Rounding rounding, double n, double part, bool negative, uint32_t random) {
  const bool odd = std::fmod(n, 2.0) != 0;
  switch (rounding) {
    case Rounding::nearest_even: return part > 0.5 || (part == 0.5 && odd);
    case Rounding::nearest_away: return part >= 0.5;
    case Rounding::toward_zero: return false;
    case Rounding::up: return part > 0 && !negative;
    case Rounding::down: return part > 0 && negative;
    case Rounding::to_odd: return part > 0 && !odd;
    case Rounding::max_magnitude: return part > 0;
    case Rounding::stochastic: return part + double(random) * 0x1p-32 >= 1;
  }
  return false;
}

float defined_rounding(const NumberFormat& f, float x, Rounding rounding, uint32_t random) {
  if (x != x) return x;
  const bool negative = std::signbit(x);
  const double sign = negative ? -1 : 1, magnitude = std::abs(double(x));
  if (magnitude == 0) return x;
  if (std::isinf(magnitude)) return float(sign * (f.infinity ? double(infinity) : double(f.max)));
  const int exponent = std::ilogb(magnitude);
  const bool small = exponent < f.min_exponent;
  const int unit = small && !f.subnormals
                       ? f.min_exponent
                       : std::max(exponent, int(f.min_exponent)) - f.significand_bits + 1;
  const double units = std::ldexp(magnitude, -unit), n = std::floor(units);
  const double result =
      std::ldexp(n + (goes_away(rounding, n, units - n, negative, random) ? 1 : 0), unit);
  if (result <= double(f.max)) return float(sign * result);
  const bool inward = rounding == Rounding::toward_zero || rounding == Rounding::to_odd ||
                      (rounding == Rounding::up && negative) ||
                      (rounding == Rounding::down && !negative);
  return float(sign * (f.infinity && !inward ? double(infinity) : double(f.max)));
}

std::vector<std::pair<std::string, NumberFormat>> all_formats() {
  std::vector<std::pair<std::string, NumberFormat>> all;
  for (const NamedFormat& known : named_formats()) all.emplace_back(known.name, known.format);
  for (const char* name :
       {"e5m6", "e8m13", "e8m0", "e3m0", "e2m23", "e4m3", "e7m1", "int4", "int16"})
    all.emplace_back(name, *number_format_named(name));
  NumberFormat without = formats::f16;
  without.subnormals = false;
  all.emplace_back("f16 without subnormals", without);
  without = formats::bf16;
  without.subnormals = false;
  all.emplace_back("bf16 without subnormals", without);
  return all;
}

/// The grid's numbers (of large grids, the first and last), the midpoints, and the floats next to
/// either.
std::vector<float> places(const NumberFormat& format) {
  std::vector<float> all{0,         1,         infinity, std::numeric_limits<float>::max(),
                         0x1p-149f, 0x1p-126f, 0x1p-127f};
  const int64_t count = count_of_numbers(format), shown = 5000;
  for (int64_t i = 0; i < count; ++i) {
    if (i == shown && count > 2 * shown) i = count - shown;
    const double number = number_at(format, i);
    const double next =
        i + 1 < count ? number_at(format, i + 1) : number + (number - number_at(format, i - 1));
    for (const double value : {number, (number + next) / 2, next}) {
      const auto x = float(value);
      all.insert(all.end(), {x, std::nextafter(x, infinity), std::nextafter(x, 0.0f)});
    }
  }
  return all;
}

/// Counts how often fast and slow rounding differ for a value and its negative, in all roundings.
class Comparison {
 public:
  Comparison(const NumberFormat& format, uint64_t seed) : format_(format), words_(seed) {
    for (int r = 0; r < rounding_count; ++r) grids_[r] = grid_of(format, Rounding(r));
  }
  void add(float magnitude) {
    for (const float x : {magnitude, -magnitude})
      for (int r = 0; r < rounding_count; ++r) check(Rounding(r), x);
  }
  int64_t comparisons = 0, wrong = 0;

 private:
  void check(Rounding rounding, float x) {
    const uint32_t random = words_();
    const float wanted = defined_rounding(format_, x, rounding, random);
    const Grid& grid = grids_[int(rounding)];
    visit_rounding(rounding, [&]<Rounding r>() {
      wrong += !same(round_on<r, true>(grid, x, random), wanted);
      if (!grid.is_wide()) wrong += !same(round_on<r, false>(grid, x, random), wanted);
    });
    ++comparisons;
  }

  NumberFormat format_;
  Words words_;
  Grid grids_[rounding_count];
};

TEST_CASE("number_formats: rounding equals its definition") {
  int64_t comparisons = 0;
  for (const auto& [name, format] : all_formats()) {
    INFO(name);
    Comparison comparison(format, 1);
    for (const float x : places(format)) comparison.add(x);
    Words words(2);
    for (int i = 0; i < 10000; ++i) {
      comparison.add(std::bit_cast<float>(words() & 0x7fffffffu));
      // near the format's own magnitudes, which random patterns seldom have
      comparison.add(
          std::ldexp(1 + float(words()) * 0x1p-32f, format.min_exponent - 12 + int(words() % 32)));
    }
    CHECK(comparison.wrong == 0);
    comparisons += comparison.comparisons;
  }
  CHECK(comparisons > 4000000);
}

TEST_CASE("number_formats: the short way of rounding equals the long one, also on random grids") {
  Words words(5);
  int64_t wrong = 0;
  int grids = 0;
  while (grids < 4000) {
    const int bits = 1 + int(words() % 24), least = int(words() % 250) - 126;
    const int top = std::min(127, least + int(words() % uint32_t(128 - least)));
    const double fraction = double(words() % (1u << (bits - 1))) / double(1u << (bits - 1));
    const NumberFormat format{.significand_bits = int16_t(bits),
                              .min_exponent = int16_t(least),
                              .max = float(std::ldexp(1 + fraction, top)),
                              .subnormals = words() % 2 == 0,
                              .infinity = words() % 2 == 0};
    const Grid grid = grid_of(format, Rounding::nearest_even,
                              words() % 2 == 0 ? Saturation::none : Saturation::propagate);
    if (grid.is_wide()) continue;
    ++grids;
    for (int i = 0; i < 100; ++i) {
      const float anywhere = std::bit_cast<float>(words());
      const float near = std::ldexp(float(words() >> 8), (i % 2 == 0 ? least : top) - 23);
      for (const float x : {anywhere, near, -near, format.max * (1 + near)})
        wrong += !same(round_on<Rounding::nearest_even, false>(grid, x, 0),
                       round_on<Rounding::nearest_even, true>(grid, x, 0));
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE(
    "number_formats: every number of a format is unchanged, and their order is that of codes") {
  for (const auto& [name, format] : all_formats()) {
    INFO(name);
    const int64_t count = count_of_numbers(format);
    if (count > 1 << 16) continue;
    CHECK(number_at(format, 0) == 0);
    CHECK(number_at(format, count - 1) == double(format.max));
    int moved = 0, disordered = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double number = number_at(format, i);
      for (int r = 0; r < rounding_count; ++r)
        moved += double(round_to(format, float(number), Rounding(r), 0xffffffffu)) != number;
      disordered += i > 0 && !(number > number_at(format, i - 1));
    }
    CHECK(moved == 0);
    CHECK(disordered == 0);
  }
}

/// The published encodings: sign 0, then exponent and fraction as in the OCP specifications.
double decoded(int exponent_bits, int fraction_bits, int code) {
  const int bias = (1 << (exponent_bits - 1)) - 1, exponent = code >> fraction_bits;
  const double fraction = std::ldexp(double(code & ((1 << fraction_bits) - 1)), -fraction_bits);
  return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
}

TEST_CASE("number_formats: every code of the OCP formats decodes to a number of the grid") {
  struct Layout {
    NumberFormat format;
    int exponent_bits, fraction_bits, numbers;  // without the sign
  };
  for (const Layout& layout : {Layout{formats::e4m3, 4, 3, 127}, Layout{formats::e5m2, 5, 2, 124},
                               Layout{formats::e3m2, 3, 2, 32}, Layout{formats::e2m3, 2, 3, 32},
                               Layout{formats::e2m1, 2, 1, 8}}) {
    REQUIRE(count_of_numbers(layout.format) == layout.numbers);
    for (int code = 0; code < layout.numbers; ++code)
      CHECK(number_at(layout.format, code) ==
            decoded(layout.exponent_bits, layout.fraction_bits, code));
  }
  REQUIRE(count_of_numbers(formats::e8m0) == 256);  // and 0, which e8m0 does not have
  for (int code = 0; code < 255; ++code)
    CHECK(number_at(formats::e8m0, code + 1) == std::ldexp(1.0, code - 127));
  REQUIRE(count_of_numbers(formats::int8) == 128);
  for (int code = 0; code < 128; ++code) CHECK(number_at(formats::int8, code) == code / 64.0);
}

TEST_CASE("number_formats: the storage dtypes' conversions are roundings onto their grids") {
  const Grid e4m3 = grid_of(formats::e4m3, Rounding::nearest_even, Saturation::propagate);
  const Grid e5m2 = grid_of(formats::e5m2, Rounding::nearest_even);
  const Grid saturating = grid_of(formats::e5m2, Rounding::nearest_even, Saturation::propagate);
  const Grid f16 = grid_of(formats::f16, Rounding::nearest_even);
  const Grid bf16 = grid_of(formats::bf16, Rounding::nearest_even);
  constexpr auto nearest = Rounding::nearest_even;
  int64_t wrong = 0;
  for (uint64_t pattern = 0; pattern < uint64_t(1) << 32; pattern += 251) {
    const float x = std::bit_cast<float>(uint32_t(pattern));
    wrong += !same(float(BFloat16(x)), round_on<nearest, true>(bf16, x, 0));
    wrong += !same(float(Float16(x)), round_on<nearest, false>(f16, x, 0));
    wrong += !same(float(Float8E5M2(x)), round_on<nearest, false>(e5m2, x, 0));
    wrong += !same(float(Float8E4M3(x, Overflow::saturate)), round_on<nearest, false>(e4m3, x, 0));
    if (std::isfinite(x))
      wrong += !same(float(Float8E5M2(x, Overflow::saturate)),
                     round_on<nearest, false>(saturating, x, 0));
  }
  CHECK(wrong == 0);
}

TEST_CASE("number_formats: stochastic rounding is right on average, also far below the grid") {
  constexpr int draws = 1 << 14;
  for (const auto& [name, format] : all_formats()) {
    if (format == formats::f32) continue;
    INFO(name);
    Words words(3), points(4);
    int64_t others = 0;
    for (int point = 0; point < 100; ++point) {
      const float x = std::ldexp(1 + float(points()) * 0x1p-32f,
                                 format.min_exponent - format.significand_bits - 4 + point % 12);
      if (!(x < format.max) || x < 0x1p-126f) continue;
      const float below = round_to(format, x, Rounding::toward_zero),
                  above = round_to(format, x, Rounding::up);
      const double gap = double(above) - double(below);
      if (gap == 0) continue;
      int64_t ups = 0;
      for (int i = 0; i < draws; ++i) {
        const float y = round_to(format, x, Rounding::stochastic, words());
        ups += y == above;
        others += y != below && y != above;
      }
      const double p = (double(x) - double(below)) / gap;
      const double sigma = std::sqrt(p * (1 - p) / draws);
      CHECK(std::abs(double(ups) / draws - p) <= 4.5 * sigma + 1.0 / draws);
    }
    CHECK(others == 0);
  }
  // A probability of 2^-30, for which random draws would be too few: exactly four of all 2^32
  // words.
  const float tiny = 0x1p-39f;  // of e4m3, whose smallest number is 2^-9
  CHECK(round_to(formats::e4m3, tiny, Rounding::stochastic, 0xffffffffu) == 0x1p-9f);
  CHECK(round_to(formats::e4m3, tiny, Rounding::stochastic, 0xfffffffcu) == 0x1p-9f);
  CHECK(round_to(formats::e4m3, tiny, Rounding::stochastic, 0xfffffffbu) == 0);
  CHECK(round_to(formats::e4m3, 0x1p-60f, Rounding::stochastic, 0xffffffffu) == 0);
}

TEST_CASE("number_formats: names") {
  for (const NamedFormat& known : named_formats()) {
    CHECK(described(known.format) == known.name);
    CHECK(number_format_named(known.name) == known.format);
    CHECK_NOTHROW(check_format("test", known.format));
  }
  CHECK(number_format_named("e8m23") == formats::f32);
  CHECK(number_format_named("e5m10") == formats::f16);
  CHECK(described(*number_format_named("e5m6")) == "e5m6");
  CHECK(described(*number_format_named("int4")) == "int4");
  CHECK(number_format_named("int4")->max == 1.75f);
  for (const char* none : {"", "e", "e4", "e4m", "e1m0", "e9m1", "e4m24", "e4m3x", "e100m1", "int2",
                           "int17", "int", "fp8", "E4M3", "e-4m3"})
    CHECK(number_format_named(none) == std::nullopt);
  NumberFormat odd = formats::e4m3;
  odd.max = 240;
  CHECK(described(odd) == "a grid of 4 significand bits from 2^-6 to 240");
  CHECK(count_of_numbers(odd) == 120);
  for (int r = 0; r < rounding_count; ++r)
    CHECK(halftone::named<Rounding>(name(Rounding(r))) == Rounding(r));
  CHECK(halftone::named<Rounding>("nearest") == std::nullopt);
}

std::string complaint(const NumberFormat& format) {
  return MESSAGE_OF(UsageError, check_format("grid", format));
}

TEST_CASE("number_formats: invalid grids") {
  CHECK(complaint({.significand_bits = 0}) ==
        "[grid] a grid has 0 significand bits. Choose 1 to 24.");
  CHECK(complaint({.significand_bits = 25}).find("25 significand bits") != std::string::npos);
  CHECK(complaint({.significand_bits = 24, .min_exponent = -127}) ==
        "[grid] a grid of 24 significand bits has the least exponent -127: its numbers must be "
        "floats. "
        "Choose one from -126 to 127.");
  CHECK(complaint({.significand_bits = 24, .min_exponent = -127, .subnormals = false})
            .find("least exponent -127") != std::string::npos);
  CHECK(complaint({.significand_bits = 4, .min_exponent = -6, .max = infinity}) ==
        "[grid] the largest number of a grid is inf. It must be finite and at least 2^-6.");
  CHECK(complaint({.significand_bits = 4, .min_exponent = -6, .max = 0}).find("is 0. It") !=
        std::string::npos);
  CHECK(
      complaint({.significand_bits = 4, .min_exponent = -6, .max = 250}) ==
      "[grid] the largest number of a grid is 250, which is not one of 4 significand bits. Choose "
      "240.");
}

}  // namespace
}  // namespace halftone::test::number_formats_test
