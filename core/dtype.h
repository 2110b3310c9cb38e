// Element types: the storage of short floats, and the facts of each dtype.
#pragma once

#include <bit>
#include <cstdint>
#include <iosfwd>
#include <limits>
#include <optional>
#include <string_view>
#include <type_traits>

#include <halftone/core/error.h>
#include <halftone/core/language.h>

namespace halftone {

// Storage types for the short floating-point formats. They only convert, explicitly. They have no
// arithmetic operators, so no kernel can accumulate in bf16 by accident. Conversions from float
// round to nearest, ties to even, and keep subnormals, infinities and NaN (quiet). Conversions to
// float are exact.
//
//   format     sign exponent fraction   max        smallest subnormal
//   BFloat16      1        8        7   3.39e38    9.18e-41
//   Float16       1        5       10   65504      5.96e-8
//   Float8E5M2    1        5        2   57344      1.53e-5     IEEE-like: has infinities
//   Float8E4M3    1        4        3   448        1.95e-3     OFP8 "fn": no infinity, NaN = 0x7f

namespace detail {

/// Rounds a float to a format with `ExponentBits` and `FractionBits` (IEEE-like, with infinities);
/// returns the bits.
template <int ExponentBits, int FractionBits>
HT_HD constexpr uint16_t round_to_ieee_like(float value) {
  constexpr int dropped = 23 - FractionBits;
  constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  constexpr uint32_t infinity = ((1u << ExponentBits) - 1) << FractionBits;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 31) << (ExponentBits + FractionBits);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u)  // NaN: keep the upper payload, make it quiet
    return uint16_t(sign | infinity | ((magnitude & 0x7fffffu) >> dropped) |
                    (1u << (FractionBits - 1)));
  const int exponent = int(magnitude >> 23) - 127 + bias;
  uint32_t kept, rest, half;
  if (exponent >= 1) {  // normal in the target, or overflow
    const uint32_t rebiased = magnitude - (uint32_t(127 - bias) << 23);
    kept = rebiased >> dropped, rest = rebiased & ((1u << dropped) - 1), half = 1u << (dropped - 1);
  } else {  // subnormal in the target: shift the significand, with its hidden bit, into place
    const int shift = dropped + 1 - exponent;
    if (shift > 25) return uint16_t(sign);
    const uint32_t hidden = magnitude >= 0x00800000u ? 0x00800000u : 0u;
    const uint32_t significand = (magnitude & 0x007fffffu) | hidden;
    kept = significand >> shift, rest = significand & ((1u << shift) - 1), half = 1u << (shift - 1);
  }
  kept += rest > half || (rest == half && (kept & 1u));
  return uint16_t(sign | (kept < infinity ? kept : infinity));
}

/// Returns the float that the bits of an IEEE-like short format encode. Exact.
template <int ExponentBits, int FractionBits> HT_HD constexpr float widen_ieee_like(uint32_t bits) {
  constexpr int bias = (1 << (ExponentBits - 1)) - 1;
  const uint32_t sign = (bits >> (ExponentBits + FractionBits)) << 31;
  const uint32_t exponent = (bits >> FractionBits) & ((1u << ExponentBits) - 1);
  const uint32_t fraction = bits & ((1u << FractionBits) - 1);
  if (exponent == (1u << ExponentBits) - 1)
    return std::bit_cast<float>(sign | 0x7f800000u | (fraction << (23 - FractionBits)));
  if (exponent == 0) {  // subnormal: fraction * 2^(1 - bias - FractionBits), an exact product
    const float unit = std::bit_cast<float>(uint32_t(127 + 1 - bias - FractionBits) << 23);
    return (sign ? -1.0f : 1.0f) * float(fraction) * unit;
  }
  return std::bit_cast<float>(sign | ((exponent + 127 - bias) << 23) |
                              (fraction << (23 - FractionBits)));
}

}  // namespace detail

struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  HT_HD explicit constexpr BFloat16(float value) : bits(round(value)) {}
  HT_HD explicit constexpr operator float() const {
    return std::bit_cast<float>(uint32_t(bits) << 16);
  }
  HT_HD static constexpr BFloat16 from_bits(uint16_t bits) {
    BFloat16 x;
    x.bits = bits;
    return x;
  }

  /// Returns the bits of the nearest bf16. bf16 is the upper half of a float, so one integer
  /// addition rounds, subnormals as well.
  HT_HD static constexpr uint16_t round(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t quiet_nan = (u >> 16) | 0x40u;
    return uint16_t((u & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded);
  }
};

struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  explicit constexpr Float16(float value) : bits(detail::round_to_ieee_like<5, 10>(value)) {}
  explicit constexpr operator float() const { return detail::widen_ieee_like<5, 10>(bits); }
  static constexpr Float16 from_bits(uint16_t bits) {
    Float16 x;
    x.bits = bits;
    return x;
  }
};

/// The result for a value that is too large for an f8 format.
enum class Overflow { to_infinity /* or NaN where there is none */, saturate };

struct Float8E5M2 {
  uint8_t bits = 0;
  Float8E5M2() = default;
  explicit constexpr Float8E5M2(float value, Overflow overflow = Overflow::to_infinity)
      : bits(uint8_t(detail::round_to_ieee_like<5, 2>(value))) {
    const bool is_nan = value != value;
    if (overflow == Overflow::saturate && !is_nan && (bits & 0x7f) == 0x7c)
      bits = uint8_t((bits & 0x80) | 0x7b);
  }
  explicit constexpr operator float() const { return detail::widen_ieee_like<5, 2>(bits); }
  static constexpr Float8E5M2 from_bits(uint8_t bits) {
    Float8E5M2 x;
    x.bits = bits;
    return x;
  }
};

struct Float8E4M3 {
  uint8_t bits = 0;
  Float8E4M3() = default;
  explicit constexpr Float8E4M3(float value, Overflow overflow = Overflow::to_infinity) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint8_t sign = uint8_t((u >> 31) << 7);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = uint8_t(sign | 0x7f);
      return;
    }
    const float magnitude = std::bit_cast<float>(u & 0x7fffffffu);
    // 464 is halfway between 448 (even fraction) and 480, which the format does not have: it still
    // rounds to 448.
    if (magnitude > 464.0f) {
      bits = uint8_t(sign | (overflow == Overflow::saturate ? 0x7e : 0x7f));
      return;
    }
    // Normal values have the fractions of a 5-bit-exponent format, whose bias is larger by 8.
    bits = uint8_t(sign |
                   (magnitude < 0x1p-6f ? round_subnormal(magnitude)
                                        : detail::round_to_ieee_like<5, 3>(magnitude) - (8u << 3)));
  }
  explicit constexpr operator float() const {
    if ((bits & 0x7f) == 0x7f)
      return std::bit_cast<float>(0x7fc00000u | (uint32_t(bits >> 7) << 31));
    const uint32_t exponent = (bits >> 3) & 15u, fraction = bits & 7u;
    const float magnitude =
        exponent == 0 ? float(fraction) * 0x1p-9f
                      : std::bit_cast<float>(((exponent + 120u) << 23) | (fraction << 20));
    return bits & 0x80 ? -magnitude : magnitude;
  }
  static constexpr Float8E4M3 from_bits(uint8_t bits) {
    Float8E4M3 x;
    x.bits = bits;
    return x;
  }

 private:
  /// Rounds a magnitude below 2^-6, where the format has the multiples of 2^-9, to nearest even;
  /// returns the multiple as a count of 2^-9. A count of 8 is the smallest normal number.
  static constexpr uint16_t round_subnormal(float magnitude) {
    const float scaled = magnitude * 512.0f;
    const auto floor = uint16_t(scaled);
    const float rest = scaled - float(floor);
    return uint16_t(floor + (rest > 0.5f || (rest == 0.5f && (floor & 1))));
  }
};

// The element types and the facts about them. Facts are data: test tolerances, policies and tables
// are computed from them, never typed by hand. Short floats are storage only; kernels compute in
// compute_t<T>.

enum class DType : uint8_t { f64, f32, f16, bf16, f8_e4m3, f8_e5m2, i64, i32, i16, u8, boolean };
inline constexpr int dtype_count = 11;

inline constexpr DType f64 = DType::f64, f32 = DType::f32, f16 = DType::f16, bf16 = DType::bf16,
                       f8_e4m3 = DType::f8_e4m3, f8_e5m2 = DType::f8_e5m2, i64 = DType::i64,
                       i32 = DType::i32, i16 = DType::i16, u8 = DType::u8, boolean = DType::boolean;

struct DTypeFacts {
  std::string_view name;
  int bytes;
  bool floating;
  int significand_bits;       // with the hidden bit; 0 for integers
  double max;                 // largest finite value
  double smallest_subnormal;  // 0 for integers
};
const DTypeFacts& facts(DType dtype);

inline std::string_view name(DType dtype) { return facts(dtype).name; }
inline int64_t size_of(DType dtype) { return facts(dtype).bytes; }
inline bool is_floating(DType dtype) { return facts(dtype).floating; }
/// Returns the spacing of the format at 1: 2^(1 - significand_bits). The largest relative error of
/// one rounding is half of it.
double epsilon(DType dtype);
/// Returns the dtype of that name ("bf16"), if it exists.
std::optional<DType> dtype_named(std::string_view name);
/// Returns the dtype to which a and b promote, as in PyTorch: a float wins over an integer, and f16
/// with bf16 gives f32.
DType promote(DType a, DType b);
std::ostream& operator<<(std::ostream& out, DType dtype);

namespace detail {
template <class T> struct DTypeOf;
template <> struct DTypeOf<double> { static constexpr DType value = f64; };
template <> struct DTypeOf<float> { static constexpr DType value = f32; };
template <> struct DTypeOf<Float16> { static constexpr DType value = f16; };
template <> struct DTypeOf<BFloat16> { static constexpr DType value = bf16; };
template <> struct DTypeOf<Float8E4M3> { static constexpr DType value = f8_e4m3; };
template <> struct DTypeOf<Float8E5M2> { static constexpr DType value = f8_e5m2; };
template <> struct DTypeOf<int64_t> { static constexpr DType value = i64; };
template <> struct DTypeOf<int32_t> { static constexpr DType value = i32; };
template <> struct DTypeOf<int16_t> { static constexpr DType value = i16; };
template <> struct DTypeOf<uint8_t> { static constexpr DType value = u8; };
template <> struct DTypeOf<bool> { static constexpr DType value = boolean; };
template <class T> struct ComputeOf { using type = T; };
template <> struct ComputeOf<Float16> { using type = float; };
template <> struct ComputeOf<BFloat16> { using type = float; };
template <> struct ComputeOf<Float8E4M3> { using type = float; };
template <> struct ComputeOf<Float8E5M2> { using type = float; };
}  // namespace detail

template <class T> inline constexpr DType dtype_of = detail::DTypeOf<T>::value;
/// The type that kernels compute and accumulate in: float for the short floats, T itself otherwise.
template <class T> using compute_t = typename detail::ComputeOf<T>::type;

/// Calls visitor.operator()<T>() with the C++ type of a floating dtype; `op` names the caller in
/// the error.
template <class Visitor>
decltype(auto) visit_floating(DType dtype, std::string_view op, Visitor&& visitor) {
  switch (dtype) {
    case f64: return visitor.template operator()<double>();
    case f32: return visitor.template operator()<float>();
    case f16: return visitor.template operator()<Float16>();
    case bf16: return visitor.template operator()<BFloat16>();
    case f8_e4m3:
    case f8_e5m2:
    case i64:
    case i32:
    case i16:
    case u8:
    case boolean: break;
  }
  fail<DTypeError>(op, "needs f64, f32, f16 or bf16, got ", dtype, ". Cast the input first.");
}

/// Calls visitor.operator()<T>() with the C++ type of any dtype.
template <class Visitor> constexpr decltype(auto) visit_any(DType dtype, Visitor&& visitor) {
  switch (dtype) {
    case f64: return visitor.template operator()<double>();
    case f32: return visitor.template operator()<float>();
    case f16: return visitor.template operator()<Float16>();
    case bf16: return visitor.template operator()<BFloat16>();
    case f8_e4m3: return visitor.template operator()<Float8E4M3>();
    case f8_e5m2: return visitor.template operator()<Float8E5M2>();
    case i64: return visitor.template operator()<int64_t>();
    case i32: return visitor.template operator()<int32_t>();
    case i16: return visitor.template operator()<int16_t>();
    case u8: return visitor.template operator()<uint8_t>();
    case boolean: return visitor.template operator()<bool>();
  }
  return visitor.template operator()<bool>();  // not reached: every dtype has its case
}

/// Returns a double as a float rounded to odd. Rounding the result to a shorter format then gives
/// the same bits as rounding the double directly (Boldo and Melquiond 2008), because the last bit
/// records whether something was cut off.
constexpr float round_to_odd(double value) {
  const float nearest = float(value);
  if (double(nearest) == value || nearest != nearest) return nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  const double magnitude = value < 0 ? -value : value,
               rounded = value < 0 ? -double(nearest) : double(nearest);
  if (rounded > magnitude)
    bits -= 1;  // towards zero: also brings an overflow back to the largest float
  return std::bit_cast<float>(bits | 1u);
}

/// Converts one element as cast() does: floats round once, floats to integers truncate (NaN gives
/// 0, values out of range clamp: C++ leaves both undefined), and every nonzero value is true.
template <class To, class From> constexpr To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (!std::is_arithmetic_v<From>) {
    return convert<To>(float(value));
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From(0);
  } else if constexpr (!std::is_arithmetic_v<To>) {
    // One rounding only: a double becomes a short format through a float with a sticky bit.
    if constexpr (std::is_same_v<From, float> || sizeof(From) < 4) return To(float(value));
    else return To(round_to_odd(double(value)));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    if (value != value) return To(0);
    constexpr double low = double(std::numeric_limits<To>::min()),
                     high = double(std::numeric_limits<To>::max());
    if (double(value) <= low) return std::numeric_limits<To>::min();
    if (double(value) >= high) return std::numeric_limits<To>::max();
    return To(value);
  } else {
    return To(value);
  }
}

}  // namespace halftone
