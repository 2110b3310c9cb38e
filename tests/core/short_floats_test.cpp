// Conversions between the short formats, float and double, compared with an independent reference,
// which rounds in double arithmetic and uses only the parameters of the format. Every bit pattern,
// every midpoint between neighbors and the numbers next to it, in both directions.
#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <halftone/core/dtype.h>

namespace halftone::test::short_floats_test {
namespace {

const double infinity = std::numeric_limits<double>::infinity();
const double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Returns the nearest value of the format, ties to even; beyond the largest finite value,
/// `overflowed` with x's sign.
double rounded(double x, DType dtype, double overflowed) {
  if (x == 0 || std::isnan(x)) return x;
  if (std::isinf(x)) return std::copysign(overflowed, x);
  const DTypeFacts& f = facts(dtype);
  const double quantum =
      std::max(std::ldexp(1.0, std::ilogb(x) - f.significand_bits + 1), f.smallest_subnormal);
  const double nearest =
      std::nearbyint(x / quantum) * quantum;  // division by a power of two: exact
  return std::abs(nearest) > f.max ? std::copysign(overflowed, x) : nearest;
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

template <class T> struct Format;
template <> struct Format<Float16> {
  using Bits = uint16_t;
  static constexpr unsigned quiet = 0x200;
  static constexpr double overflowed = std::numeric_limits<double>::infinity();
};
template <> struct Format<BFloat16> : Format<Float16> { static constexpr unsigned quiet = 0x40; };
template <> struct Format<Float8E5M2> : Format<Float16> {
  using Bits = uint8_t;
  static constexpr unsigned quiet = 0x2;
};
template <> struct Format<Float8E4M3> {
  using Bits = uint8_t;
  static constexpr unsigned quiet = 0;  // its only NaN
  static constexpr double overflowed = std::numeric_limits<double>::quiet_NaN();
};

template <class T> constexpr unsigned patterns = 1u << (8 * sizeof(T));

template <class T> double value_of(unsigned bits) {
  return double(float(T::from_bits(typename Format<T>::Bits(bits))));
}

/// Finite values of the format with their bits, ascending from 0.
template <class T> std::vector<double> magnitudes() {
  std::vector<double> values;
  for (unsigned bits = 0; bits < patterns<T> / 2; ++bits)
    if (std::isfinite(value_of<T>(bits))) values.push_back(value_of<T>(bits));
  return values;
}

// Counted, not checked one by one: a CHECK costs more than a conversion.
template <class T> int wrong_from_float(float x) {
  return !same(float(T(x)), rounded(x, dtype_of<T>, Format<T>::overflowed));
}
template <class T> int wrong_from_double(double x) {
  return !same(float(convert<T>(x)), rounded(x, dtype_of<T>, Format<T>::overflowed));
}

}  // namespace

TEST_CASE_TEMPLATE("every bit pattern survives the way to float and back", T, Float16, BFloat16,
                   Float8E5M2, Float8E4M3) {
  static_assert(!std::is_convertible_v<float, T> && !std::is_convertible_v<T, float>);
  int wrong = 0;
  for (unsigned bits = 0; bits < patterns<T>; ++bits) {
    const float wide = float(T::from_bits(typename Format<T>::Bits(bits)));
    // A signaling NaN comes back quiet, with its sign and payload.
    wrong += T(wide).bits != (std::isnan(wide) ? bits | Format<T>::quiet : bits);
    wrong += convert<T>(double(wide)).bits != (std::isnan(wide) ? bits | Format<T>::quiet : bits);
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("values are those of the format's formula", T, Float16, BFloat16, Float8E5M2,
                   Float8E4M3) {
  const DTypeFacts& f = facts(dtype_of<T>);
  const std::vector<double> values = magnitudes<T>();
  CHECK(values.front() == 0);
  CHECK(values[1] == f.smallest_subnormal);
  CHECK(values.back() == f.max);
  CHECK(std::ranges::is_sorted(values));
  int wrong = 0;
  for (const double value : values) wrong += rounded(value, dtype_of<T>, infinity) != value;
  CHECK(wrong == 0);
  // Equal steps up to twice the smallest normal number, then the steps double with each power of
  // two.
  const std::size_t steps = std::size_t(1) << (f.significand_bits - 1);
  for (std::size_t i = 1; i < values.size(); ++i) {
    const double step = std::ldexp(f.smallest_subnormal, std::max(int((i - 1) / steps) - 1, 0));
    wrong += values[i] - values[i - 1] != step;
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("midpoints and their neighbours round to nearest even, once", T, Float16,
                   BFloat16, Float8E5M2, Float8E4M3) {
  std::vector<double> values = magnitudes<T>();
  values.push_back(2 * values.back() -
                   values[values.size() - 2]);  // the value that would follow the largest
  const float most = std::numeric_limits<float>::max();
  int wrong = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    const double middle = (values[i - 1] + values[i]) / 2;
    for (const double sign : {1.0, -1.0}) {
      for (const double target : {middle, values[i]}) {
        const double x = sign * target;
        for (const double near : {x, std::nextafter(x, -infinity), std::nextafter(x, infinity)})
          wrong += wrong_from_double<T>(near);
        if (target > double(most)) continue;
        const float y = float(x);
        REQUIRE(double(y) == x);
        for (const float near : {y, std::nextafter(y, -most), std::nextafter(y, most)})
          wrong += wrong_from_float<T>(near);
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("random numbers of every magnitude round to nearest even", T, Float16, BFloat16,
                   Float8E5M2, Float8E4M3) {
  std::mt19937_64 random(7);
  int wrong = 0;
  for (int i = 0; i < 300'000; ++i) {
    const uint64_t bits = random();
    const float x = std::bit_cast<float>(uint32_t(bits));
    if (!std::isnan(x)) wrong += wrong_from_float<T>(x);
    const double y = double(x) * (1 + double(bits >> 40) * 0x1p-52);
    if (!std::isnan(y)) wrong += wrong_from_double<T>(y);
    const double any = std::bit_cast<double>(bits);
    if (!std::isnan(any)) wrong += wrong_from_double<T>(any);
  }
  CHECK(wrong == 0);
}

TEST_CASE_TEMPLATE("infinities, NaN and zeros", T, Float16, BFloat16, Float8E5M2, Float8E4M3) {
  for (const double x : {0.0, -0.0, infinity, -infinity, 1e300, -1e300, 1e-300, -1e-300}) {
    CAPTURE(x);
    CHECK(wrong_from_float<T>(float(x)) == 0);
    CHECK(wrong_from_double<T>(x) == 0);
  }
  for (const double sign : {1.0, -1.0}) {
    const float nan = std::copysign(std::numeric_limits<float>::quiet_NaN(), float(sign));
    CHECK(std::isnan(float(T(nan))));
    CHECK(std::signbit(float(T(nan))) == std::signbit(nan));
    CHECK(std::isnan(float(convert<T>(not_a_number))));
  }
  // A NaN whose payload has only bits that are cut off must not become an infinity.
  CHECK(std::isnan(float(T(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isnan(float(T(std::bit_cast<float>(0xff800001u)))));
}

TEST_CASE_TEMPLATE("f8 overflow: to infinity or NaN, or saturated", T, Float8E5M2, Float8E4M3) {
  const double largest = facts(dtype_of<T>).max;
  const double previous = magnitudes<T>().end()[-2];
  const double limit =
      largest + (largest - previous) / 2;  // halfway to the value that does not exist
  // 448 = 1.75 * 2^8 has an even fraction, so its tie stays; 57344 = 1.75 * 2^15 has an odd one.
  const bool tie_overflows = dtype_of<T> == f8_e5m2;
  for (const float sign : {1.0f, -1.0f}) {
    const auto saturated = [&](double x) {
      return double(float(T(sign * float(x), Overflow::saturate)));
    };
    const auto plain = [&](double x) { return double(float(T(sign * float(x)))); };
    const auto overflowed = [&](double x) { return same(plain(x), sign * Format<T>::overflowed); };
    CHECK(plain(largest) == sign * largest);
    CHECK(plain(std::nextafter(float(limit), 0.0f)) == sign * largest);
    CHECK(overflowed(limit) == tie_overflows);
    CHECK(overflowed(std::nextafter(float(limit), 1e30f)));
    CHECK(overflowed(infinity));
    for (const double x : {largest, limit, 2 * largest, 1e38, infinity})
      CHECK(saturated(x) == sign * largest);
    CHECK(std::isnan(saturated(not_a_number)));
    int wrong = 0;
    for (const double x : magnitudes<T>()) wrong += saturated(x) != plain(x);
    CHECK(wrong == 0);
  }
}

}  // namespace halftone::test::short_floats_test
