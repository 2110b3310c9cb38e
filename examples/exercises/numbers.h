// Numbers for tasks 3 to 15: rounding to short formats, computed in f64. It is short and slow; the
// library has its own way (core/formats/number_format.h). It contains answers to tasks 1 and 2.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace numbers {

/// The 32 bits of a float, and the float of 32 bits.
inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

/// Returns x rounded to nearest, ties to even, to numbers of `significand_bits` (the hidden bit is
/// one of them). Below 2^min_exponent the spacing stays the same. Beyond `max` it returns max, with
/// x's sign, or infinity if `infinite`. NaN stays NaN, and zero keeps its sign.
inline float rounded(double x, int significand_bits, int min_exponent, double max,
                     bool infinite = false) {
  if (std::isnan(x) || x == 0) return float(x);
  const double beyond = infinite ? std::numeric_limits<double>::infinity() : max;
  if (std::isinf(x)) return float(std::copysign(beyond, x));
  const int exponent = std::max(std::ilogb(x), min_exponent);
  const int spacing = exponent - significand_bits + 1;  // its base-2 logarithm
  const double y = std::ldexp(std::nearbyint(std::ldexp(x, -spacing)), spacing);
  return float(std::copysign(std::fabs(y) > max ? beyond : std::fabs(y), x));
}

/// x on a grid: bf16 and e5m2 become infinite beyond their largest, the others saturate.
///
///   bf16: largest 3.39e38, 8 significand bits     e4m3: largest 448, smallest 2^-9
///   e5m2: largest 57344, smallest 2^-16           e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6
inline float bf16(double x) { return rounded(x, 8, -126, 0x1.fep127, true); }
inline float e5m2(double x) { return rounded(x, 3, -14, 57344, true); }
inline float e4m3(double x) { return rounded(x, 4, -6, 448); }
inline float e2m1(double x) { return rounded(x, 2, 0, 6); }

/// The 16 bits of a bf16, which are the upper half of the float of the same value.
inline uint16_t bf16_bits(float x) {
  const uint32_t quiet = std::isnan(x) ? 0x400000 : 0;  // NaN keeps a bit in the upper half
  return uint16_t((bits_of(bf16(x)) | quiet) >> 16);
}
inline float from_bf16(uint16_t bits) { return float_of(uint32_t(bits) << 16); }

}  // namespace numbers
