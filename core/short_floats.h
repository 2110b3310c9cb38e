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
#pragma once

#include <bit>
#include <cstdint>
#include <halftone/core/host_device.h>

namespace halftone {

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

  /// bf16 is the upper half of a float, so rounding is one integer addition (and works for
  /// subnormals).
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
  /// Below 2^-6 the grid consists of the multiples of 2^-9; nearest, ties to even. 8 means the
  /// smallest normal.
  static constexpr uint16_t round_subnormal(float magnitude) {
    const float scaled = magnitude * 512.0f;
    const auto floor = uint16_t(scaled);
    const float rest = scaled - float(floor);
    return uint16_t(floor + (rest > 0.5f || (rest == 0.5f && (floor & 1))));
  }
};

}  // namespace halftone
