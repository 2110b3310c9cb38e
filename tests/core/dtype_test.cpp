// The table of dtypes, promotion, and convert<>() for integers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <sstream>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/core/dtype.h>

#include "../support.h"

namespace halftone::test::dtype_test {
namespace {
constexpr DType all[]{f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, u8, boolean};
template <class T> using Limits = std::numeric_limits<T>;
}  // namespace

TEST_CASE("facts of dtypes") {
  for (const DType dtype : all) {
    const DTypeFacts& f = facts(dtype);
    CAPTURE(f.name);
    CHECK(dtype_named(f.name) == dtype);
    std::ostringstream text;
    text << dtype;
    CHECK(text.str() == f.name);
    visit_any(dtype, [&]<class T>() {
      CHECK(dtype_of<T> == dtype);
      CHECK(size_of(dtype) == int64_t(sizeof(T)));
      CHECK(is_floating(dtype) == !std::is_integral_v<T>);
      CHECK(double(convert<double>(convert<T>(f.max))) == f.max);
    });
    CHECK(epsilon(dtype) == (f.floating ? std::ldexp(1.0, 1 - f.significand_bits) : 0.0));
  }
  CHECK(epsilon(f32) == Limits<float>::epsilon());
  CHECK(epsilon(f64) == Limits<double>::epsilon());
  CHECK(facts(f32).smallest_subnormal == Limits<float>::denorm_min());
  CHECK(facts(f64).smallest_subnormal == Limits<double>::denorm_min());
  CHECK(facts(f32).max == Limits<float>::max());
  CHECK(facts(f64).max == Limits<double>::max());
  CHECK(epsilon(f16) == 0x1p-10);
  CHECK(epsilon(bf16) == 0x1p-7);
  CHECK_FALSE(dtype_named("float"));
  CHECK_FALSE(dtype_named(""));
  static_assert(
      std::is_same_v<compute_t<BFloat16>, float> && std::is_same_v<compute_t<double>, double> &&
      std::is_same_v<compute_t<Float8E4M3>, float> && std::is_same_v<compute_t<int64_t>, int64_t>);
}

TEST_CASE("promotion") {
  // Rows and columns in the order of `all`. As torch.promote_types, which refuses to mix f8 with
  // other floats.
  const DType table[dtype_count][dtype_count]{
      {f64, f64, f64, f64, f64, f64, f64, f64, f64, f64, f64},
      {f64, f32, f32, f32, f32, f32, f32, f32, f32, f32, f32},
      {f64, f32, f16, f32, f16, f16, f16, f16, f16, f16, f16},
      {f64, f32, f32, bf16, bf16, bf16, bf16, bf16, bf16, bf16, bf16},
      {f64, f32, f16, bf16, f8_e4m3, f16, f8_e4m3, f8_e4m3, f8_e4m3, f8_e4m3, f8_e4m3},
      {f64, f32, f16, bf16, f16, f8_e5m2, f8_e5m2, f8_e5m2, f8_e5m2, f8_e5m2, f8_e5m2},
      {f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i64, i64, i64, i64},
      {f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i32, i32, i32},
      {f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, i16, i16},
      {f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, u8, u8},
      {f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, u8, boolean},
  };
  for (int a = 0; a < dtype_count; ++a) {
    for (int b = 0; b < dtype_count; ++b) {
      CAPTURE(name(all[a]));
      CAPTURE(name(all[b]));
      CHECK(promote(all[a], all[b]) == table[a][b]);
    }
  }
}

TEST_CASE("floats to integers truncate and clamp, NaN becomes 0") {
  CHECK(convert<int32_t>(1.9) == 1);
  CHECK(convert<int32_t>(-1.9f) == -1);
  CHECK(convert<int32_t>(2147483647.0) == 2147483647);
  CHECK(convert<int32_t>(2147483646.9) == 2147483646);
  CHECK(convert<int32_t>(3e9f) == Limits<int32_t>::max());
  CHECK(convert<int32_t>(-3e9) == Limits<int32_t>::min());
  CHECK(convert<int32_t>(-2147483648.9) == Limits<int32_t>::min());
  CHECK(convert<int64_t>(1e19) == Limits<int64_t>::max());
  CHECK(convert<int64_t>(0x1p63) == Limits<int64_t>::max());
  CHECK(convert<int64_t>(std::nextafter(0x1p63, 0)) == int64_t(std::nextafter(0x1p63, 0)));
  CHECK(convert<int64_t>(-0x1p63) == Limits<int64_t>::min());
  CHECK(convert<int64_t>(-1e30f) == Limits<int64_t>::min());
  CHECK(convert<uint8_t>(255.9) == 255);
  CHECK(convert<uint8_t>(256.0f) == 255);
  CHECK(convert<uint8_t>(-0.9) == 0);
  CHECK(convert<uint8_t>(-7.0) == 0);
  for (const double value : {Limits<double>::infinity(), -Limits<double>::infinity()}) {
    CHECK(convert<int64_t>(value) == (value > 0 ? Limits<int64_t>::max() : Limits<int64_t>::min()));
    CHECK(convert<int32_t>(float(value)) ==
          (value > 0 ? Limits<int32_t>::max() : Limits<int32_t>::min()));
    CHECK(convert<uint8_t>(Float16(float(value))) == (value > 0 ? 255 : 0));
  }
  CHECK(convert<int64_t>(Limits<double>::quiet_NaN()) == 0);
  CHECK(convert<int32_t>(Limits<float>::quiet_NaN()) == 0);
  CHECK(convert<uint8_t>(BFloat16(Limits<float>::quiet_NaN())) == 0);
  CHECK(convert<int32_t>(BFloat16(-2.75f)) == -2);
}

TEST_CASE("integers to integers wrap, and to floats round once") {
  CHECK(convert<uint8_t>(int64_t(300)) == 44);
  CHECK(convert<uint8_t>(int32_t(-1)) == 255);
  CHECK(convert<int32_t>((int64_t(1) << 32) + 5) == 5);
  CHECK(convert<int64_t>(uint8_t(200)) == 200);
  CHECK(convert<float>(int32_t(16777217)) == 16777216.0f);
  CHECK(convert<double>(int64_t(1) << 53) == 0x1p53);
  // 2049 is halfway between 2048 and 2050 in f16; 2051 between 2050 and 2052.
  CHECK(float(convert<Float16>(int32_t(2049))) == 2048);
  CHECK(float(convert<Float16>(int64_t(2051))) == 2052);
  // Through a float first, this would become a tie and round down.
  CHECK(float(convert<BFloat16>(int64_t(0x1010001) << 8)) == float(0x1020000) * 256);
  CHECK(float(convert<BFloat16>(int32_t(0x1010001))) == float(0x1020000));
  CHECK(std::isinf(float(convert<Float16>(int64_t(65520)))));
  CHECK(float(convert<Float16>(int64_t(65519))) == 65504);
  CHECK(float(convert<Float16>(uint8_t(255))) == 255);
  CHECK(float(convert<BFloat16>(true)) == 1);
}

TEST_CASE("anything but zero is true") {
  CHECK(convert<bool>(0.25));
  CHECK(convert<bool>(int64_t(256)));
  CHECK(convert<bool>(-0.0f) == false);
  CHECK(convert<bool>(Float16::from_bits(0x8000)) == false);
  CHECK(convert<bool>(Float16::from_bits(1)));
  CHECK(convert<bool>(Limits<double>::quiet_NaN()));
  CHECK(convert<bool>(Limits<double>::denorm_min()));
  CHECK(convert<double>(true) == 1);
  CHECK(convert<uint8_t>(true) == 1);
}

TEST_CASE("double to float rounds to odd where it is inexact") {
  CHECK(round_to_odd(1.5) == 1.5f);
  CHECK(round_to_odd(1 + 0x1p-24) == 1 + 0x1p-23f);
  CHECK(round_to_odd(1 + 0x1p-23 + 0x1p-24) == 1 + 0x1p-23f);
  CHECK(round_to_odd(-1 - 0x1p-40) == -1 - 0x1p-23f);
  CHECK(round_to_odd(1e300) == Limits<float>::max());
  CHECK(round_to_odd(-1e300) == -Limits<float>::max());
  CHECK(round_to_odd(1e-300) == Limits<float>::denorm_min());
  CHECK(round_to_odd(-1e-300) == -Limits<float>::denorm_min());
  CHECK(std::isinf(round_to_odd(Limits<double>::infinity())));
  CHECK(std::isnan(round_to_odd(Limits<double>::quiet_NaN())));
  CHECK(std::signbit(round_to_odd(-0.0)));
}

TEST_CASE("visit_floating names the caller") {
  for (const DType dtype : {f8_e4m3, f8_e5m2, i64, i32, i16, u8, boolean}) {
    const std::string message =
        message_of<DTypeError>([&] { visit_floating(dtype, "sinh", []<class T>() {}); });
    CHECK(message == "[sinh] needs f64, f32, f16 or bf16, got " + std::string(name(dtype)) +
                         ". Cast the input first.");
  }
}

}  // namespace halftone::test::dtype_test

// Conversions between the short formats, float and double, compared with an independent reference,
// which rounds in double arithmetic and uses only the parameters of the format. Every bit pattern,
// every midpoint between neighbors and the numbers next to it, in both directions.

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
