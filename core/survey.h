// What is in a tensor, and what a rounding y = Q(x) did to it: counts and sums in one row of f64
// numbers on the tensor's device, which kernels add to and nobody waits for. Rows of several calls,
// steps and devices add up (merge). One element is counted here, once, for every backend: counts
// are equal to the bit everywhere, sums up to the order of addition.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <type_traits>

#include <halftone/core/quantizer.h>

namespace halftone {

/// Everything but the histogram. What is infinite or NaN is counted and enters no sum; the same
/// holds for errors of what became infinite.
struct SurveySums {
  // --- of x
  double count = 0, zeros = 0, infinite = 0, nan = 0;
  // --- what the rounding did; 0 where nothing was rounded
  double to_zero = 0;      // x != 0, y = 0
  double subnormal = 0;    // y != 0 below the grid's smallest normal number (times its scale)
  double saturated = 0;    // |x| beyond the grid's largest number, y finite
  double to_infinity = 0;  // x finite, y not
  double changed = 0;      // y != x
  // --- e = y - x
  double sum_x2 = 0, sum_e2 = 0, sum_e = 0, sum_abs_x = 0;
  double sum_relative = 0;  // of |e| / |x|, over x != 0
  // --- of |x|, over what is finite and not 0; 0 where nothing is
  double largest = 0, smallest = 0;

  HT_HD constexpr void merge(const SurveySums& other) {
    count += other.count, zeros += other.zeros, infinite += other.infinite, nan += other.nan;
    to_zero += other.to_zero, subnormal += other.subnormal, saturated += other.saturated;
    to_infinity += other.to_infinity, changed += other.changed;
    sum_x2 += other.sum_x2, sum_e2 += other.sum_e2, sum_e += other.sum_e;
    sum_abs_x += other.sum_abs_x, sum_relative += other.sum_relative;
    if (other.largest > largest) largest = other.largest;
    if (other.smallest != 0 && (smallest == 0 || other.smallest < smallest))
      smallest = other.smallest;
  }
};

struct Survey {
  /// |x| in [2^e, 2^(e+1)) for e = -149 (the smallest float) to 127: number e + 149.
  static constexpr int lowest_exponent = -149, binades = 277;
  std::array<double, binades> binade{};
  SurveySums sums{};

  /// f64 numbers of a row.
  static const int64_t row_length;
  /// A row, read from its device.
  static Survey from(const Tensor& row);
  void merge(const Survey& other);

  // --- derived; NaN where nothing can be said
  /// The share of what is not 0 that became 0; with zeros_count: of everything, as
  /// TransformerEngine counts.
  double underflow(bool zeros_count = false) const;
  double saturation() const;
  /// Signal to quantization noise, 10 log10(sum x^2 / sum e^2) in dB; infinite where nothing
  /// changed.
  double sqnr() const;
  /// sum e / sum |x|, and the same as Student's t of e against 0.
  double bias() const;
  double bias_t() const;
  double mean_relative_error() const;
  double root_mean_square() const;
  /// The share of the finite numbers other than 0 with |x| < 2^exponent.
  double share_below(int exponent) const;
  /// By the histogram, of the numbers other than 0: the share that a format would round to 0, or
  /// to beyond its largest, if x came multiplied by 2^lift. Binades are cut at powers of two.
  double would_underflow(const NumberFormat& format, int lift = 0) const;
  double would_overflow(const NumberFormat& format, int lift = 0) const;
  /// The power of two that lifts all but `tolerated` of the numbers out of what the format rounds
  /// to 0, as far as there is room above them: the loss scale that would have been enough. Nothing
  /// for a survey without numbers.
  std::optional<int> sufficient_lift(const NumberFormat& format, double tolerated = 1e-3) const;
};
static_assert(std::is_standard_layout_v<Survey> && sizeof(Survey) % sizeof(double) == 0);
inline constexpr int64_t Survey::row_length = int64_t(sizeof(Survey) / sizeof(double));

/// The bin of a finite number other than 0: its exponent, from its bits, - lowest_exponent.
HT_HD constexpr int binade_of(float x) {
  const uint32_t bits = magnitude_bits(x), field = bits >> 23;
  // A subnormal's significand is a whole number that a float holds exactly: its exponent is the
  // bit.
  return field != 0 ? int(field) + 22 : int(std::bit_cast<uint32_t>(float(bits)) >> 23) - 127;
}

/// What one element's rounding is judged by.
struct SurveyNumbers {
  bool rounds = false;
  float max = 0, smallest_normal = 0;
};
inline SurveyNumbers survey_numbers(const QuantizeCall* call) {
  if (!call) return {};
  const NumberFormat& grid = call->quantizer.grid;
  return {true, grid.max, power_of_two(grid.min_exponent < -126 ? -126 : grid.min_exponent)};
}

/// One element into sums; its bin, or -1 for what has none. scaled: x as it met the grid; scale: of
/// its tensor or block.
HT_HD constexpr int survey_element(const SurveyNumbers& n, const Scale& scale, float x,
                                   float scaled, float y, SurveySums& sums) {
  sums.count += 1;
  const uint32_t magnitude = magnitude_bits(x);
  if (magnitude >= 0x7f800000u) {
    (magnitude == 0x7f800000u ? sums.infinite : sums.nan) += 1;
    return -1;
  }
  if (magnitude == 0) {
    sums.zeros += 1;
    return -1;
  }
  const double wide = x, size = wide < 0 ? -wide : wide;
  sums.sum_x2 += wide * wide, sums.sum_abs_x += size;
  if (size > sums.largest) sums.largest = size;
  if (sums.smallest == 0 || size < sums.smallest) sums.smallest = size;
  if (!n.rounds) return binade_of(x);
  if (magnitude_bits(y) >= 0x7f800000u) {
    sums.to_infinity += 1, sums.changed += 1;
    return binade_of(x);
  }
  const double e = double(y) - wide, error = e < 0 ? -e : e;
  sums.changed += e != 0 ? 1 : 0;
  sums.sum_e2 += e * e, sums.sum_e += e, sums.sum_relative += error / size;
  const double on_grid = double(y < 0 ? -y : y) / (double(scale.out) * double(scale.tail));
  if (y == 0) sums.to_zero += 1;
  else if (on_grid < double(n.smallest_normal)) sums.subnormal += 1;
  if ((scaled < 0 ? -scaled : scaled) > n.max) sums.saturated += 1;
  return binade_of(x);
}

/// A row of zeros on a device.
Tensor new_survey_row(Device device);
/// Adds a tensor to a row (undefined: to none). y: what became of x under `call` without its
/// rotation; the same tensor where call is null. Any floating dtype, f64 as f32 sees it; any
/// strides.
void survey(const Tensor& x, const Tensor& y, const QuantizeCall* call, const Tensor& row);

}  // namespace halftone
