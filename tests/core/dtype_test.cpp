// The table of dtypes, promotion, and convert<>() for integers.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <sstream>

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
