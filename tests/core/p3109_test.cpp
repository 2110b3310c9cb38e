// IEEE P3109 (interim report 4.0): the working group's value tables, and its operations
// RoundToPrecision (4.7.4) and Saturate (4.7.5), written here from their text.
#include <cmath>
#include <fstream>
#include <string>

#include <doctest/doctest.h>

#include <halftone/core/factory.h>
#include <halftone/core/formats/quantizer.h>

#include "../support.h"

namespace halftone::test::p3109_test {
namespace {

std::string line_of(const P3109Format::Value& value) {
  using Kind = P3109Format::Value::Kind;
  if (value.kind == Kind::nan) return "nan";
  if (value.kind == Kind::infinity) return value.significand < 0 ? "-inf" : "inf";
  if (value.significand == 0) return "0";
  int significand = value.significand, exponent = value.exponent;
  for (; significand % 2 == 0; significand /= 2) ++exponent;
  return std::to_string(significand) + "*2^" + std::to_string(exponent);
}

uint64_t hash_of(const P3109Format& format) {
  uint64_t hash = 0xcbf29ce484222325;
  for (int code = 0; code < 1 << format.bits; ++code)
    for (const char c : line_of(format.value(code)) + '\n')
      hash = (hash ^ uint64_t(static_cast<unsigned char>(c))) * 0x100000001b3;
  return hash;
}

TEST_CASE("p3109: the numbers of all codes of all 504 formats are those of the standard's tables") {
  std::ifstream tables(fixtures_directory() + "/p3109/tables.txt");
  std::string name, hash;
  int count = 0;
  while (tables >> name >> hash) {
    CAPTURE(name);
    const auto format = P3109Format::named(name);
    REQUIRE(format);
    CHECK(format->name() == name);
    CHECK(hash_of(*format) == std::stoull(hash, nullptr, 16));
    ++count;
  }
  CHECK(count == 504);
}

/// All formats of at most 8 bits.
std::vector<P3109Format> short_formats() {
  std::vector<P3109Format> all;
  for (int bits = 3; bits <= 8; ++bits)
    for (int precision = 1; precision <= bits; ++precision)
      for (const bool has_sign : {true, false})
        for (const bool extended : {true, false})
          if (!has_sign || precision < bits) all.push_back({bits, precision, has_sign, extended});
  return all;
}

TEST_CASE("p3109: a grid has the numbers of its format") {
  REQUIRE(short_formats().size() == 120);
  for (const P3109Format& format : short_formats()) {
    CAPTURE(format.name());
    const auto grid = format.grid();
    REQUIRE(grid);
    CHECK(described(*grid) == format.name());
    CHECK(*number_format_named(format.name()) == *grid);
    check_format("test", *grid);
    REQUIRE(count_of_numbers(*grid) == format.largest_code() + 1);
    for (int code = 0; code <= format.largest_code(); ++code) {
      const P3109Format::Value value = format.value(code);
      CHECK(number_at(*grid, code) == std::ldexp(value.significand, value.exponent));
    }
  }
  CHECK_FALSE(number_format_named("binary16p2se"));  // f32 has no 14 bits of exponent
  CHECK(number_format_named("binary16p8se"));
  for (const char* wrong :
       {"binary2p1se", "binary8p8se", "binary8p9ue", "binary8p0se", "binary17p3se", "binary8p4",
        "binary8p4xe", "binary8p4see", "binaryp4se", "binary8se"})
    CHECK_FALSE(P3109Format::named(wrong));
}

// --- the operations, in doubles, which hold every value exactly

bool goes_away(Rounding rounding, StochasticBits random, double share, bool negative, bool even,
               double r) {
  const double count = std::ldexp(1.0, random.bits);  // 2^N
  switch (rounding) {
    case Rounding::toward_zero: return false;
    case Rounding::max_magnitude: return share > 0;
    case Rounding::up: return share > 0 && !negative;
    case Rounding::down: return share > 0 && negative;
    case Rounding::nearest_away: return share >= 0.5;
    case Rounding::nearest_even: return share > 0.5 || (share == 0.5 && !even);
    case Rounding::to_odd: return share > 0 && even;
    case Rounding::stochastic: break;
  }
  switch (random.variant) {
    case StochasticVariant::a: return std::floor(share * count) + r >= count;
    case StochasticVariant::b: return std::floor(share * 2 * count) + (2 * r + 1) >= 2 * count;
    case StochasticVariant::c: break;
  }
  const double x = share * count, low = std::floor(x);
  const bool stays = x < low + 0.5 || (x == low + 0.5 && std::fmod(low, 2) == 0);
  return (stays ? low : low + 1) + r >= count;
}

double to_precision(const P3109Format& f, Rounding rounding, StochasticBits random, double x,
                    double r) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int q = std::max(std::ilogb(x), 1 - f.bias()) - f.precision + 1;
  const double scaled = std::ldexp(std::abs(x), -q), whole = std::floor(scaled);
  const bool even =
      f.precision > 1 ? std::fmod(whole, 2) == 0 : whole == 0 || (q + f.bias()) % 2 == 0;
  const bool away = goes_away(rounding, random, scaled - whole, x < 0, even, r);
  return std::copysign(std::ldexp(whole + (away ? 1 : 0), q), x);
}

double saturated(const P3109Format& f, Saturation mode, Rounding rounding, double x) {
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  const P3109Format::Value largest = f.value(f.largest_code());
  const double high = std::ldexp(largest.significand, largest.exponent),
               low = f.has_sign ? -high : 0;
  if (std::isnan(x) || (low <= x && x <= high)) return x;
  const double bound = x < 0 ? low : high;
  if (mode == Saturation::finite) return bound;
  const bool holds = f.extended && (x > 0 || f.has_sign);
  if (mode == Saturation::propagate) return std::isinf(x) && holds ? x : bound;
  if (std::isinf(x)) return holds ? x : (x < 0 && !f.has_sign) ? NAN : bound;
  if (rounding == Rounding::to_odd && !f.has_sign && f.extended && x > high) return high;
  const Rounding outward = x > 0 ? Rounding::down : Rounding::up;
  if (rounding == Rounding::toward_zero || rounding == outward) return bound;
  if (x < low) return !f.has_sign ? NAN : f.extended ? -infinity : low;
  return f.extended ? infinity : high;
}

/// Numbers of the grid and one beyond, midpoints, their neighbors, and others, with both signs.
std::vector<float> inputs_of(const NumberFormat& grid, uint64_t seed) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> inputs{0, infinity, NAN, std::numeric_limits<float>::max(), 0x1p-149f};
  double before = 0;
  for (int64_t i = 0; i <= count_of_numbers(grid); ++i) {
    const double number = number_at(grid, i);
    for (const double x : {number, (before + number) / 2, before + (number - before) / 4})
      for (const float y :
           {float(x), std::nextafter(float(x), 0.0f), std::nextafter(float(x), infinity)})
        inputs.push_back(y);
    before = number;
  }
  for (uint64_t i = 0; i < 50; ++i)
    for (const uint32_t word : Philox::words(seed, i))
      inputs.push_back(std::bit_cast<float>(word & 0x7fffffffu));
  const std::size_t count = inputs.size();
  for (std::size_t i = 0; i < count; ++i) inputs.push_back(-inputs[i]);
  return inputs;
}

struct Case {
  Rounding rounding;
  StochasticBits random;
};
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int r = 0; r < rounding_count; ++r)
    if (Rounding(r) != Rounding::stochastic) cases.push_back({Rounding(r), {}});
  for (const StochasticVariant variant :
       {StochasticVariant::a, StochasticVariant::b, StochasticVariant::c})
    for (const int bits : {1, 3, 8, 24}) cases.push_back({Rounding::stochastic, {bits, variant}});
  return cases;
}

bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (a != a && b != b);
}

TEST_CASE(
    "p3109: every rounding and saturation is the standard's, element by element and by kernel") {
  int64_t compared = 0, wrong = 0, wrong_in_kernel = 0;
  for (const P3109Format& format : short_formats()) {
    const NumberFormat grid = *format.grid();
    const std::vector<float> inputs = inputs_of(grid, uint64_t(format.bits));
    const Tensor x = from_vector(inputs, {int64_t(inputs.size())});
    for (const auto& [rounding, random] : all_cases())
      for (const Saturation mode : {Saturation::none, Saturation::finite, Saturation::propagate}) {
        const Quantizer quantizer{
            .grid = grid, .rounding = rounding, .random = random, .saturation = mode};
        const QuantizeNumbers numbers = numbers_of(quantizer);
        const Tensor y = quantized(x, {.quantizer = quantizer, .key = {3, 0}});
        for (std::size_t i = 0; i < inputs.size(); ++i) {
          const uint32_t word = Philox::words(3, i / 4)[i % 4];
          const double r = double(word >> (32 - random.bits));
          double wanted = saturated(format, mode, rounding,
                                    to_precision(format, rounding, random, double(inputs[i]), r));
          if (wanted == 0) wanted = 0;  // without a sign
          const float got = quantize_element(numbers, {}, inputs[i], word);
          if (!same(got, float(wanted)) && wrong++ == 0)
            FAIL_CHECK(format.name(), ", ", name(rounding), ' ', random.bits, name(random.variant),
                       ' ', name(mode), ": ", inputs[i], " -> ", got, ", wanted ", wanted);
          wrong_in_kernel += !same(y.data<float>()[i], float(wanted));
          ++compared;
        }
      }
  }
  CHECK(wrong == 0);
  CHECK(wrong_in_kernel == 0);
  CHECK(compared > 10000000);
}

}  // namespace
}  // namespace halftone::test::p3109_test
