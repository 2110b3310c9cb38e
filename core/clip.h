// The clip of a quantizer: large magnitudes are limited by a bound that follows from the tensor.
// Every backend computes the bound and the clip with the functions of this file, in the order that
// clip_bound() defines, so results have the same bits everywhere.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

#include <halftone/core/formats/quantizer.h>
#include <halftone/core/host_device.h>

namespace halftone {

/// Returns the bound for the numbers of a tensor; infinity without a clip. NaN and infinite numbers
/// do not count. With n finite numbers x:
///   rms r       f32(r sqrt(sum x^2 / n)). The sum is in f64: summed_by_lanes() for the squares of
///               each squares_together neighbors, and then for these sums
///   quantile q  the magnitude number max(1, ceil(q n)) in ascending order, counted from 1
float clip_bound(const Clip& clip, std::span<const float> values);

/// Throws UsageError in the name of `op` for a multiple that is not positive, a quantile that is
/// not in (0, 1], and for both.
void check_clip(std::string_view op, const Clip& clip);

// --- arithmetic of the kernels

inline constexpr int64_t squares_together = 4096;
inline constexpr int sum_lanes = 256;

/// Returns x as limited by the bound. NaN and infinite numbers stay.
HT_HD constexpr float clipped(float x, float bound) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = magnitude_bits(x);
  const bool beyond = magnitude < 0x7f800000u && magnitude > magnitude_bits(bound);
  return beyond ? std::bit_cast<float>((bits & 0x80000000u) | magnitude_bits(bound)) : x;
}

/// Returns the term of x in the sum of squares, which is exact.
HT_HD constexpr double finite_square(float x) {
  return is_finite_magnitude(x) ? double(x) * double(x) : 0;
}

/// Returns term(0) + ... + term(count - 1) in f64: lane l adds the terms l, l + 256, l + 512, ...
/// in this order; then the upper half of the lanes is added to the lower half until one is left.
template <class Term> HT_HD double summed_by_lanes(int64_t count, const Term& term) {
  double lanes[sum_lanes] = {};
  const int64_t whole = count - count % sum_lanes;
  for (int64_t i = 0; i < whole; i += sum_lanes)
    for (int l = 0; l < sum_lanes; ++l) lanes[l] += term(i + l);
  for (int64_t i = whole; i < count; ++i) lanes[i - whole] += term(i);
  for (int half = sum_lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

/// count: the finite numbers.
HT_HD float bound_by_rms(double multiple, double squares, int64_t count) {
  return count > 0 ? float(multiple * std::sqrt(squares / double(count))) : 0.0f;
}

/// Returns the place, counted from 1, of the quantile among `count` > 0 ascending magnitudes.
HT_HD int64_t place_of_quantile(double share, int64_t count) {
  const auto wanted = int64_t(std::ceil(share * double(count)));
  return wanted < 1 ? 1 : (wanted > count ? count : wanted);
}

/// The bits of a magnitude in three digits. A kernel finds the magnitude at a place digit by digit:
/// it counts each value of a digit among the magnitudes with the same digits before it.
struct MagnitudeDigit {
  int shift, bits;
  HT_HD constexpr bool follows(uint32_t magnitude, uint32_t prefix) const {
    return magnitude < 0x7f800000u && magnitude >> (shift + bits) == prefix;
  }
  HT_HD constexpr uint32_t of(uint32_t magnitude) const {
    return magnitude >> shift & ((1u << bits) - 1);
  }
};
inline constexpr MagnitudeDigit magnitude_digits[] = {{20, 11}, {10, 10}, {0, 10}};
inline constexpr int most_digit_values = 1 << 11;

}  // namespace halftone
