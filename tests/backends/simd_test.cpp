// bf16 and f16 on every instruction set: widening over all 65536 patterns, rounding over every
// value, every midpoint and its neighbors. The truth is a search for the nearest value.
#include <algorithm>
#include <bit>
#include <limits>

#include "simd_levels.h"

namespace halftone::test::simd_conversions_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// An IEEE-like short format by its definition.
struct Format {
  int exponent_bits, fraction_bits;
  void (*simd::Kernels::*widen)(const uint16_t*, float*, int64_t);
  void (*simd::Kernels::*narrow)(const float*, uint16_t*, int64_t);

  uint16_t infinity_bits() const { return uint16_t(((1 << exponent_bits) - 1) << fraction_bits); }
  double value(uint16_t bits) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const double fraction = std::ldexp(double(bits & ((1 << fraction_bits) - 1)), -fraction_bits);
    const double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
      return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * double(infinity);
    return exponent == 0 ? sign * std::ldexp(fraction, 1 - bias)
                         : sign * std::ldexp(1 + fraction, exponent - bias);
  }
  /// The value one step above the largest finite value, if the format continued.
  double beyond_largest() const { return std::ldexp(1.0, 1 << (exponent_bits - 1)); }
};

const Format bf16_format{8, 7, &simd::Kernels::widen_bf16, &simd::Kernels::narrow_bf16};
const Format f16_format{5, 10, &simd::Kernels::widen_f16, &simd::Kernels::narrow_f16};

/// Returns the bits of the value nearest to x; in a tie, the even one.
class Nearest {
 public:
  explicit Nearest(const Format& format) : format_(format) {
    for (uint32_t bits = 0; bits < format.infinity_bits(); ++bits)
      values_.push_back(format.value(uint16_t(bits)));
    values_.push_back(format.beyond_largest());  // represents infinity
  }
  uint16_t operator()(float x) const {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const double magnitude = std::abs(double(x));
    if (magnitude >= values_.back()) return uint16_t(sign | format_.infinity_bits());
    const auto above = std::upper_bound(values_.begin(), values_.end(), magnitude);
    const auto high = uint16_t(above - values_.begin()), low = uint16_t(high - 1);
    const double to_low = magnitude - values_[low], to_high = values_[high] - magnitude;
    const bool up = to_high < to_low || (to_high == to_low && low % 2 == 1);
    return uint16_t(sign | (up ? high : low));
  }
  const std::vector<double>& values() const { return values_; }

 private:
  const Format& format_;
  std::vector<double> values_;
};

void check_widening(const Format& format) {
  std::vector<uint16_t> patterns(65536);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = uint16_t(i);
  each_level([&](const simd::Kernels& k) {
    std::vector<float> wide(patterns.size());
    (k.*format.widen)(patterns.data(), wide.data(), int64_t(wide.size()));
    int wrong = 0;
    for (std::size_t i = 0; i < wide.size(); ++i) {
      const double truth = format.value(patterns[i]);
      const bool same_sign = std::signbit(wide[i]) == ((patterns[i] & 0x8000) != 0);
      wrong += std::isnan(truth) ? !std::isnan(wide[i]) : !(double(wide[i]) == truth && same_sign);
    }
    CHECK(wrong == 0);
  });
}

/// All values of the format, the midpoints between them, their neighbors, and random floats.
std::vector<float> floats_to_round(const Nearest& nearest) {
  std::vector<float> x;
  const auto& values = nearest.values();
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    const auto middle = float((values[i] + values[i + 1]) / 2);
    for (const float v :
         {float(values[i]), middle, std::nextafter(middle, 0.0f), std::nextafter(middle, infinity)})
      x.push_back(v), x.push_back(-v);
  }
  x.insert(x.end(), {infinity, -infinity, std::numeric_limits<float>::max(),
                     std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
                     0.0f, -0.0f});
  Numbers numbers(1);
  while (x.size() < 1'500'000) {
    const float any = std::bit_cast<float>(uint32_t(numbers.word()));
    if (!std::isnan(any)) x.push_back(any);
    x.push_back(std::bit_cast<float>(uint32_t(numbers.word()) & 0x807fffffu));  // subnormal floats
  }
  return x;
}

void check_rounding(const Format& format) {
  const Nearest nearest(format);
  const std::vector<float> x = floats_to_round(nearest);
  each_level([&](const simd::Kernels& k) {
    std::vector<uint16_t> narrow(x.size());
    (k.*format.narrow)(x.data(), narrow.data(), int64_t(x.size()));
    int wrong = 0;
    std::size_t first = 0;
    for (std::size_t i = 0; i < x.size(); ++i)
      if (narrow[i] != nearest(x[i]) && wrong++ == 0) first = i;
    CHECK_MESSAGE(wrong == 0, "first: ", x[first], " gives ", narrow[first], " instead of ",
                  nearest(x[first]));
  });
}

void check_nan(const Format& format) {
  std::vector<float> x;
  for (const uint32_t bits :
       {0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0xff800001u, 0xffc01234u, 0x7f80ffffu})
    for (int i = 0; i < 5; ++i)
      x.push_back(std::bit_cast<float>(bits));  // enough for a whole vector
  each_level([&](const simd::Kernels& k) {
    std::vector<uint16_t> narrow(x.size());
    (k.*format.narrow)(x.data(), narrow.data(), int64_t(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      CHECK(std::isnan(format.value(narrow[i])));
      CHECK(((narrow[i] & 0x8000) != 0) == std::signbit(x[i]));
      CHECK((narrow[i] & (1 << (format.fraction_bits - 1))) != 0);  // quiet
    }
  });
}

/// Any number of elements from any address; nothing after the end is written.
void check_edges(const Format& format) {
  Numbers numbers(2);
  const std::vector<float> x = numbers.many(4200, -100, 100);
  const Nearest nearest(format);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : lengths()) {
      if (n > 4100) continue;
      for (const int64_t start : {0, 1, 3}) {
        std::vector<uint16_t> narrow(std::size_t(n) + 8, 0xabcd);
        (k.*format.narrow)(x.data() + start, narrow.data() + start, n);
        std::vector<float> wide(std::size_t(n) + 8, -7.0f);
        (k.*format.widen)(narrow.data() + start, wide.data() + start, n);
        bool right = true;
        for (std::size_t i = 0; i < narrow.size(); ++i) {
          const bool inside = int64_t(i) >= start && int64_t(i) < start + n;
          right = right && narrow[i] == (inside ? nearest(x[i]) : 0xabcd);
          right = right && wide[i] == (inside ? float(format.value(narrow[i])) : -7.0f);
        }
        CHECK_MESSAGE(right, n, " elements from ", start);
      }
    }
  });
}

TEST_CASE("bf16 widens exactly, all patterns") { check_widening(bf16_format); }
TEST_CASE("f16 widens exactly, all patterns") { check_widening(f16_format); }
TEST_CASE("floats round to the nearest bf16, ties to even") { check_rounding(bf16_format); }
TEST_CASE("floats round to the nearest f16, ties to even") { check_rounding(f16_format); }
TEST_CASE("NaN stays NaN, with its sign, and becomes quiet") {
  check_nan(bf16_format);
  check_nan(f16_format);
}
TEST_CASE("conversions of any length touch nothing else") {
  check_edges(bf16_format);
  check_edges(f16_format);
}

}  // namespace
}  // namespace halftone::test::simd_conversions_test
