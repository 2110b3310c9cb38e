// Elementary functions of doubles from sums, products, quotients and square roots alone, so that
// results have the same bits with every compiler, C library and CPU. (The C library chooses among
// several versions by the CPU, and they differ in the last bit now and then.) Errors are below two
// and a half units in the last place (erfinv: four); special cases are those of the C library.
// tests/core/math_test.cpp measures both.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <halftone/core/dtype.h>
#include <halftone/core/language.h>

namespace halftone::elementary {

double exp(double x);
double expm1(double x);
double log(double x);
double log1p(double x);
double log2(double x);
double log10(double x);
double tanh(double x);
double erf(double x);
double sin(double x);
double cos(double x);
double tan(double x);
double asin(double x);
double acos(double x);
double atan(double x);
double atan2(double y, double x);
double sinh(double x);
double cosh(double x);
double exp2(double x);
double erfinv(double x);
double pow(double x, double y);

}  // namespace halftone::elementary

// Elementary functions for the formulas, in three versions under one name. double calls
// elementary::, and CUDA's library on a GPU. float on the host is a branch-free polynomial
// that compilers vectorize (errors of one to two units in the last place, tested by
// tests/core/math_test.cpp against double). float in CUDA calls the device library. Sources of the
// polynomials: exp is its Taylor series after Cody-Waite reduction; log, tanh are Cephes'
// (Moshier).

namespace halftone::math {

template <class T> HT_HD T sqrt(T x) {
  if constexpr (std::is_same_v<T, float>) return __builtin_sqrtf(x);
  else return __builtin_sqrt(x);
}

template <class T> HT_HD T abs(T x) {
  if constexpr (std::is_same_v<T, float>) return __builtin_fabsf(x);
  else return __builtin_fabs(x);
}

template <class T> HT_HD T copysign(T magnitude, T sign) {
  if constexpr (std::is_same_v<T, float>) return __builtin_copysignf(magnitude, sign);
  else return __builtin_copysign(magnitude, sign);
}

namespace detail {

/// The parts of exp(x) = fraction * 2^n, n a whole number: Cody-Waite reduction, then the series.
struct ReducedExp {
  float fraction, n;
  uint32_t bits_of_n;  // its last bits are those of n
};
HT_HD ReducedExp reduced_exp(float x) {
  const float shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693145752f) - n * 1.42860677e-6f;  // x - n ln 2, in two parts
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  return {p * r * r + r + 1.0f, n, std::bit_cast<uint32_t>(shifted)};
}

HT_HD float exp_f32(float x) {
#if defined(__CUDA_ARCH__)
  return ::expf(x);
#else
  constexpr float lowest = -104.0f, highest = 88.7228394f;
  const ReducedExp e = reduced_exp(x < lowest ? lowest : (x > highest ? highest : x));
  // 2^n as two factors, so that subnormal results can be reached.
  const int32_t whole = int32_t(e.n), half = whole >> 1;
  const float y = e.fraction * std::bit_cast<float>((half + 127) << 23) *
                  std::bit_cast<float>((whole - half + 127) << 23);
  const float bounded = x > highest ? std::numeric_limits<float>::infinity() : y;
  return x != x ? x : (x < lowest ? 0.0f : bounded);
#endif
}

HT_HD float exp_below_f32(float x) {
#if defined(__CUDA_ARCH__)
  return ::expf(x);
#else
  constexpr float lowest = -88.029f;  // here n is -127, and the bits of 2^-127 give 0
  const ReducedExp e = reduced_exp(x < lowest ? lowest : x);
  return e.fraction * std::bit_cast<float>((e.bits_of_n + 127u) << 23);
#endif
}

HT_HD float log_f32(float x) {
#if defined(__CUDA_ARCH__)
  return ::logf(x);
#else
  const bool subnormal = x < 1.17549435e-38f;
  const float scaled = subnormal ? x * 8388608.0f : x;
  const int32_t bits = std::bit_cast<int32_t>(scaled);
  const int32_t exponent = (bits >> 23) - 126;
  const float mantissa = std::bit_cast<float>((bits & 0x007fffff) | 0x3f000000);  // in [0.5, 1)
  const bool low = mantissa < 0.707106781f;
  const float e = float(exponent) - (low ? 1.0f : 0.0f) - (subnormal ? 23.0f : 0.0f);
  const float m = (low ? mantissa + mantissa : mantissa) - 1.0f;
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  float y = p * m * z - 2.12194440e-4f * e - 0.5f * z;
  y = m + y + 0.693359375f * e;
  // One choice a line: nested choices keep compilers from vectorizing.
  const float infinity = std::numeric_limits<float>::infinity(),
              nan = std::numeric_limits<float>::quiet_NaN();
  y = x == infinity ? infinity : y;
  y = x == 0.0f ? -infinity : y;
  y = x < 0.0f ? nan : y;
  return x != x ? nan : y;
#endif
}

HT_HD float tanh_f32(float x) {
#if defined(__CUDA_ARCH__)
  return ::tanhf(x);
#else
  const float magnitude = abs(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near_zero = p * z * x + x;
  const float bounded = magnitude > 10.0f ? 10.0f : magnitude;
  const float far = 1.0f - 2.0f / (exp_f32(bounded + bounded) + 1.0f);
  return x != x ? x : copysign(magnitude < 0.625f ? near_zero : far, x);  // -0 stays -0
#endif
}

// double: the same bits on every host (elementary::); CUDA's library on a GPU.
#if defined(__CUDA_ARCH__)
HT_HD double wide_exp(double x) { return ::exp(x); }
HT_HD double wide_log(double x) { return ::log(x); }
HT_HD double wide_tanh(double x) { return ::tanh(x); }
HT_HD double wide_expm1(double x) { return ::expm1(x); }
HT_HD double wide_log1p(double x) { return ::log1p(x); }
HT_HD double wide_log2(double x) { return ::log2(x); }
HT_HD double wide_log10(double x) { return ::log10(x); }
HT_HD double wide_erf(double x) { return ::erf(x); }
HT_HD double wide_sin(double x) { return ::sin(x); }
HT_HD double wide_cos(double x) { return ::cos(x); }
HT_HD double wide_pow(double x, double y) { return ::pow(x, y); }
#else
HT_HD double wide_exp(double x) { return elementary::exp(x); }
HT_HD double wide_log(double x) { return elementary::log(x); }
HT_HD double wide_tanh(double x) { return elementary::tanh(x); }
HT_HD double wide_expm1(double x) { return elementary::expm1(x); }
HT_HD double wide_log1p(double x) { return elementary::log1p(x); }
HT_HD double wide_log2(double x) { return elementary::log2(x); }
HT_HD double wide_log10(double x) { return elementary::log10(x); }
HT_HD double wide_erf(double x) { return elementary::erf(x); }
HT_HD double wide_sin(double x) { return elementary::sin(x); }
HT_HD double wide_cos(double x) { return elementary::cos(x); }
HT_HD double wide_pow(double x, double y) { return elementary::pow(x, y); }
#endif

#if defined(HALFTONE_PORTABLE)
HT_HD float float_expm1(float x) { return float(elementary::expm1(double(x))); }
HT_HD float float_log1p(float x) { return float(elementary::log1p(double(x))); }
HT_HD float float_log2(float x) { return float(elementary::log2(double(x))); }
HT_HD float float_log10(float x) { return float(elementary::log10(double(x))); }
HT_HD float float_sin(float x) { return float(elementary::sin(double(x))); }
HT_HD float float_cos(float x) { return float(elementary::cos(double(x))); }
HT_HD float float_pow(float x, float y) { return float(elementary::pow(double(x), double(y))); }
#else
HT_HD float float_expm1(float x) { return __builtin_expm1f(x); }
HT_HD float float_log1p(float x) { return __builtin_log1pf(x); }
HT_HD float float_log2(float x) { return __builtin_log2f(x); }
HT_HD float float_log10(float x) { return __builtin_log10f(x); }
HT_HD float float_sin(float x) { return __builtin_sinf(x); }
HT_HD float float_cos(float x) { return __builtin_cosf(x); }
HT_HD float float_pow(float x, float y) { return __builtin_powf(x, y); }
#endif

HT_HD float erf_f32(float x) {
#if defined(__CUDA_ARCH__)
  return ::erff(x);
#else
  // Near 0 an odd polynomial; from 1 on 1 - exp(-x^2) q(1 / (1 + x)). Both are Chebyshev
  // interpolations of the exact functions; their errors are 3e-11 and 2e-9.
  const float magnitude = abs(x), t = x * x;
  float p = -9.66704457e-6f;
  p = p * t + 1.12659590e-4f;
  p = p * t - 8.48408041e-4f;
  p = p * t + 5.22103181e-3f;
  p = p * t - 2.68654307e-2f;
  p = p * t + 1.12837825e-1f;
  p = p * t - 3.76126385e-1f;
  const float near_zero = x * (p * t + 1.28379166e-1f) + x;  // 2 / sqrt(pi) - 1 and 1
  const float bounded = magnitude > 4.0f ? 4.0f : magnitude, u = 1.0f / (1.0f + bounded);
  float q = -0.600161868f;
  q = q * u + 1.294818768f;
  q = q * u - 0.608252704f;
  q = q * u - 0.636252882f;
  q = q * u + 0.429597429f;
  q = q * u + 0.534454964f;
  q = q * u + 0.567263804f;
  q = q * u - 1.30824212e-4f;
  const float far = 1.0f - exp_below_f32(-bounded * bounded) * q;
  return x != x ? x : copysign(magnitude < 1.0f ? near_zero : far, x);
#endif
}

}  // namespace detail

template <class T> HT_HD T exp(T x) {
  if constexpr (std::is_same_v<T, float>) return detail::exp_f32(x);
  else return detail::wide_exp(x);
}
/// Returns exp(x) for x at most 0 (up to rounding), if results below 2^-126 may become 0, as they
/// do in float. Other results equal those of exp(), without the cost of its range checks.
template <class T> HT_HD T exp_below(T x) {
  if constexpr (std::is_same_v<T, float>) return detail::exp_below_f32(x);
  else return detail::wide_exp(x);
}
template <class T> HT_HD T log(T x) {
  if constexpr (std::is_same_v<T, float>) return detail::log_f32(x);
  else return detail::wide_log(x);
}
template <class T> HT_HD T sigmoid(T x) { return T(1) / (T(1) + exp(-x)); }
template <class T> HT_HD T tanh(T x) {
  if constexpr (std::is_same_v<T, float>) return detail::tanh_f32(x);
  else return detail::wide_tanh(x);
}
// The remaining functions are rare in training steps: element by element, the float ones by the C
// library. In portable tables they are rounded from doubles, because C libraries differ.
template <class T> HT_HD T expm1(T x) {
  if constexpr (std::is_same_v<T, float>) return detail::float_expm1(x);
  else return detail::wide_expm1(x);
}
template <class T> HT_HD T log1p(T x) {
  if constexpr (std::is_same_v<T, float>) return detail::float_log1p(x);
  else return detail::wide_log1p(x);
}
template <class T> HT_HD T log2(T x) {
  if constexpr (std::is_same_v<T, float>) return detail::float_log2(x);
  else return detail::wide_log2(x);
}
template <class T> HT_HD T log10(T x) {
  if constexpr (std::is_same_v<T, float>) return detail::float_log10(x);
  else return detail::wide_log10(x);
}
template <class T> HT_HD T erf(T x) {
  if constexpr (std::is_same_v<T, float>) return detail::erf_f32(x);
  else return detail::wide_erf(x);
}
template <class T> HT_HD T sin(T x) {
  if constexpr (std::is_same_v<T, float>) return detail::float_sin(x);
  else return detail::wide_sin(x);
}
template <class T> HT_HD T cos(T x) {
  if constexpr (std::is_same_v<T, float>) return detail::float_cos(x);
  else return detail::wide_cos(x);
}
// Rarer ones yet: on the host the float ones are rounded from doubles.
template <class T> HT_HD T tan(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) return ::tanf(x);
  else return ::tan(x);
#else
  return T(elementary::tan(double(x)));
#endif
}
template <class T> HT_HD T asin(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) return ::asinf(x);
  else return ::asin(x);
#else
  return T(elementary::asin(double(x)));
#endif
}
template <class T> HT_HD T acos(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) return ::acosf(x);
  else return ::acos(x);
#else
  return T(elementary::acos(double(x)));
#endif
}
template <class T> HT_HD T atan(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) return ::atanf(x);
  else return ::atan(x);
#else
  return T(elementary::atan(double(x)));
#endif
}
template <class T> HT_HD T sinh(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) return ::sinhf(x);
  else return ::sinh(x);
#else
  return T(elementary::sinh(double(x)));
#endif
}
template <class T> HT_HD T cosh(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) return ::coshf(x);
  else return ::cosh(x);
#else
  return T(elementary::cosh(double(x)));
#endif
}
template <class T> HT_HD T exp2(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) return ::exp2f(x);
  else return ::exp2(x);
#else
  return T(elementary::exp2(double(x)));
#endif
}
template <class T> HT_HD T erfinv(T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) return ::erfinvf(x);
  else return ::erfinv(x);
#else
  return T(elementary::erfinv(double(x)));
#endif
}
template <class T> HT_HD T atan2(T y, T x) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) return ::atan2f(y, x);
  else return ::atan2(y, x);
#else
  return T(elementary::atan2(double(y), double(x)));
#endif
}
template <class T> HT_HD T floor(T x) {
  if constexpr (std::is_same_v<T, float>) return __builtin_floorf(x);
  else return ::floor(x);
}
template <class T> HT_HD T ceil(T x) {
  if constexpr (std::is_same_v<T, float>) return __builtin_ceilf(x);
  else return ::ceil(x);
}
template <class T> HT_HD T trunc(T x) {
  if constexpr (std::is_same_v<T, float>) return __builtin_truncf(x);
  else return ::trunc(x);
}
/// Rounds to the nearest whole number, halves to the even one.
template <class T> HT_HD T round_even(T x) {
  if constexpr (std::is_same_v<T, float>) return __builtin_rintf(x);
  else return ::rint(x);
}
/// Returns the remainder of x / y, with x's sign.
template <class T> HT_HD T fmod(T x, T y) {
  if constexpr (std::is_same_v<T, float>) return __builtin_fmodf(x, y);
  else return ::fmod(x, y);
}
template <class T> HT_HD T pow(T x, T y) {
  if constexpr (std::is_same_v<T, float>) return detail::float_pow(x, y);
  else return detail::wide_pow(x, y);
}

// Integers, modulo 2^64 in cases where C++ leaves an overflow undefined.
HT_HD int64_t wrapped_sum(int64_t a, int64_t b) { return int64_t(uint64_t(a) + uint64_t(b)); }
HT_HD int64_t wrapped_product(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
/// running_product() returns the next product. running_product_slope() returns before * after, the
/// gradient of factor i: `before` is x_0 ... x_(i-1), `after` the sum over j >= i of dy_j x_(i+1)
/// ... x_j. If `before` is 0, so is the result, although `after` may be infinite.
template <class T> HT_HD T running_product(T product, T factor) {
  if constexpr (std::is_integral_v<T>) return wrapped_product(product, factor);
  else return product * factor;
}
HT_HD double running_product_slope(double before, double after) {
  return before == 0 && after == after ? 0.0 : before * after;
}
/// Returns a to the power b. A negative b gives 0 except for a = 1 and -1, as PyTorch's.
HT_HD int64_t wrapped_power(int64_t a, int64_t b) {
  if (b < 0) return a == 1 ? 1 : (a == -1 ? (b % 2 == 0 ? 1 : -1) : 0);
  int64_t power = 1;
  for (; b > 0; b /= 2, a = wrapped_product(a, a))
    if (b % 2 == 1) power = wrapped_product(power, a);
  return power;
}
/// Returns the quotient rounded down, and 0 for a divisor of 0, which would trap in the processor.
HT_HD int64_t floor_quotient(int64_t a, int64_t b) {
  if (b == 0) return 0;
  if (b == -1) return wrapped_product(a, -1);  // the least integer has no opposite
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

}  // namespace halftone::math

// The end of a half-open range in a short format: uniform numbers on [low, high) must not become
// `high` when they are rounded to y's dtype.

namespace halftone {

/// Returns the value before `high` on T's grid: the formats store sign and magnitude, so
/// neighboring numbers have neighboring bits.
template <class T> double largest_below(double high) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  const T nearest = convert<T>(high);
  if (convert<double>(nearest) < high) return convert<double>(nearest);
  constexpr Bits sign = Bits(Bits(1) << (8 * sizeof(T) - 1));
  const Bits bits = std::bit_cast<Bits>(nearest);
  const bool zero = (bits & Bits(~sign)) == 0, negative = (bits & sign) != 0;
  const Bits below = zero ? Bits(sign | 1) : Bits(negative ? bits + 1 : bits - 1);
  return convert<double>(std::bit_cast<T>(below));
}

}  // namespace halftone
