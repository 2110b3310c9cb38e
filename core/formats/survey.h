// Statistics of a tensor, and of the changes by a rounding y = Q(x): counts and sums in one row of
// f64 numbers on the tensor's device. Kernels add to it, and the host does not wait. Rows of
// several calls, steps and devices add up (merge). One element is counted here, once, for every
// backend: counts are equal to the bit everywhere, sums up to the order of addition.
#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <type_traits>

#include <halftone/core/formats/quantizer.h>

namespace halftone {

/// The counts and sums of a survey: all but its histogram. Infinite and NaN elements are counted
/// and enter no sum; the same holds for errors of elements that became infinite.
struct SurveySums {
  // --- of x
  double count = 0, zeros = 0, infinite = 0, nan = 0;
  // --- effects of the rounding; 0 without a rounding
  double to_zero = 0;      // x != 0, y = 0
  double subnormal = 0;    // y != 0 below the grid's smallest normal number (times its scale)
  double saturated = 0;    // |x| beyond the grid's largest number, y finite
  double to_infinity = 0;  // x finite, y not
  double changed = 0;      // y != x
  // --- e = y - x
  double sum_x2 = 0, sum_e2 = 0, sum_e = 0, sum_abs_x = 0;
  double sum_relative = 0;  // of |e| / |x|, over x != 0
  // --- the same by the kind of error: y = 0 (where e = -x), saturated, and all others
  double dead_x2 = 0;
  double saturated_x2 = 0, saturated_xe = 0, saturated_e2 = 0;
  double grid_x2 = 0, grid_xe = 0, grid_e2 = 0;
  // --- of |x|, over finite elements other than 0; 0 if there are none
  double largest = 0, smallest = 0;

  HT_HD constexpr void merge(const SurveySums& other);
};

/// How a number of two rows becomes one: `count`, `sum` and `by_error` add up; `largest` and
/// `smallest` take the extreme. Only rounded tensors have sums `by_error`.
enum class SumKind : uint8_t { count, sum, by_error, largest, smallest };

/// Calls use(name, kind, number of each) for every number of SurveySums, in its order: the one list
/// for merging, kernels and files.
template <class Use, class... Sums> HT_HD constexpr void each_sum(Use&& use, Sums&... s) {
  use("count", SumKind::count, s.count...);
  use("zeros", SumKind::count, s.zeros...);
  use("infinite", SumKind::count, s.infinite...);
  use("nan", SumKind::count, s.nan...);
  use("to_zero", SumKind::count, s.to_zero...);
  use("subnormal", SumKind::count, s.subnormal...);
  use("saturated", SumKind::count, s.saturated...);
  use("to_infinity", SumKind::count, s.to_infinity...);
  use("changed", SumKind::count, s.changed...);
  use("sum_x2", SumKind::sum, s.sum_x2...);
  use("sum_e2", SumKind::sum, s.sum_e2...);
  use("sum_e", SumKind::sum, s.sum_e...);
  use("sum_abs_x", SumKind::sum, s.sum_abs_x...);
  use("sum_relative", SumKind::sum, s.sum_relative...);
  use("dead_x2", SumKind::by_error, s.dead_x2...);
  use("saturated_x2", SumKind::by_error, s.saturated_x2...);
  use("saturated_xe", SumKind::by_error, s.saturated_xe...);
  use("saturated_e2", SumKind::by_error, s.saturated_e2...);
  use("grid_x2", SumKind::by_error, s.grid_x2...);
  use("grid_xe", SumKind::by_error, s.grid_xe...);
  use("grid_e2", SumKind::by_error, s.grid_e2...);
  use("largest", SumKind::largest, s.largest...);
  use("smallest", SumKind::smallest, s.smallest...);
}

/// Returns the kind of the number at index `field` of SurveySums.
HT_HD constexpr SumKind sum_kind(int field) {
  SumKind found = SumKind::count;
  SurveySums sums;
  int at = 0;
  each_sum([&](const char*, SumKind kind, double&) { found = at++ == field ? kind : found; }, sums);
  return found;
}
HT_HD constexpr double merged(SumKind kind, double a, double b) {
  if (kind == SumKind::largest) return a < b ? b : a;
  if (kind == SumKind::smallest) return b != 0 && (a == 0 || b < a) ? b : a;
  return a + b;
}
HT_HD constexpr void SurveySums::merge(const SurveySums& other) {
  each_sum([](const char*, SumKind kind, double& a, double b) { a = merged(kind, a, b); }, *this,
           other);
}
/// The number of numbers in SurveySums, all of which are in the list above.
inline constexpr int sum_fields = sizeof(SurveySums) / sizeof(double);
static_assert(
    [] {
      SurveySums sums;
      int listed = 0;
      each_sum([&](const char*, SumKind, double& x) { x += 1, ++listed; }, sums);
      bool once = listed == sum_fields;
      each_sum([&](const char*, SumKind, double x) { once = once && x == 1; }, sums);
      return once;
    }(),
    "each_sum() lists every number of SurveySums once");

/// The squared error of a rounding, sum e^2, in parts that add up to it. With the gain a = sum x y
/// / sum x^2, e = (a - 1) x + (y - a x), and the two terms are orthogonal. The first is the scale's
/// part. The second is divided by the kind of element. After arXiv 2605.20402.
struct ErrorParts {
  double scale = 0;       // (a - 1)^2 sum x^2: the error that one factor for all of y would remove
  double dead_zone = 0;   // sum of (y - a x)^2 over numbers that became 0
  double grid = 0;        // ... over numbers that were rounded to a neighbor on the grid
  double saturation = 0;  // ... over numbers beyond the grid's largest
  double whole() const { return scale + dead_zone + grid + saturation; }
};

struct Survey {
  /// binade[e + 149] counts |x| in [2^e, 2^(e+1)), for e = -149 (the smallest float) to 127.
  static constexpr int lowest_exponent = -149, binades = 277;
  std::array<double, binades> binade{};
  SurveySums sums{};

  /// The number of f64 numbers in a row.
  static const int64_t row_length;
  /// Reads a row from its device. Throws UsageError for a tensor that is not a row.
  static Survey from(const Tensor& row);
  void merge(const Survey& other);

  // --- derived; NaN if undefined
  /// Returns the share of nonzero elements that became 0; with zeros_count the share of all
  /// elements, as TransformerEngine counts.
  double underflow(bool zeros_count = false) const;
  double saturation() const;
  /// Returns the signal to quantization noise ratio, 10 log10(sum x^2 / sum e^2) in dB; infinite if
  /// nothing changed.
  double sqnr() const;
  /// bias() returns sum e / sum |x|, and bias_t() Student's t of the mean of e against 0.
  double bias() const;
  double bias_t() const;
  double mean_relative_error() const;
  /// Returns the parts of sum e^2; all NaN for rows of files that have no sums by kind.
  ErrorParts error_parts() const;
  /// Returns the norm of x over that of e: for a gradient, training stalls below sqrt(3) (arXiv
  /// 2505.19115). Infinite if nothing changed.
  double norm_to_noise() const;
  double root_mean_square() const;
  /// Returns the share of the finite numbers other than 0 with |x| < 2^exponent.
  double share_below(int exponent) const;
  /// Return the share of the finite numbers other than 0 that a format rounds to 0, or beyond its
  /// largest number, if x is multiplied by 2^lift. By the histogram: limits are powers of two.
  double would_underflow(const NumberFormat& format, int lift = 0) const;
  double would_overflow(const NumberFormat& format, int lift = 0) const;
  /// Returns the exponent of the power of two that lifts all but the share `tolerated` of the
  /// numbers out of the range that rounds to 0, as far as the format has room above them: the loss
  /// scale that would have been enough. Empty for a survey without numbers.
  std::optional<int> sufficient_lift(const NumberFormat& format, double tolerated = 1e-3) const;
};
static_assert(std::is_standard_layout_v<Survey> && sizeof(Survey) % sizeof(double) == 0);
inline constexpr int64_t Survey::row_length = int64_t(sizeof(Survey) / sizeof(double));

/// Returns the bin of a finite number other than 0: its exponent, from its bits, - lowest_exponent.
HT_HD constexpr int binade_of(float x) {
  const uint32_t bits = magnitude_bits(x), field = bits >> 23;
  // A subnormal's significand is a whole number that a float holds exactly: its exponent is the
  // position of the highest bit.
  return field != 0 ? int(field) + 22 : int(std::bit_cast<uint32_t>(float(bits)) >> 23) - 127;
}

/// The limits against which one element's rounding is counted.
struct SurveyNumbers {
  bool rounds = false;
  float max = 0, smallest_normal = 0;
};
inline SurveyNumbers survey_numbers(const QuantizeCall* call) {
  if (!call) return {};
  const NumberFormat& grid = call->quantizer.grid;
  return {true, grid.max, power_of_two(grid.min_exponent < -126 ? -126 : grid.min_exponent)};
}

/// Counts one element in `sums` and returns its bin, or -1 if it has none. scaled: scaled_in() of
/// x, before it is rounded; scale: that of its tensor or block.
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
  const double x2 = wide * wide, xe = wide * e, e2 = e * e;
  sums.changed += e != 0 ? 1 : 0;
  sums.sum_e2 += e2, sums.sum_e += e, sums.sum_relative += error / size;
  const double on_grid = double(y < 0 ? -y : y) / (double(scale.out) * double(scale.tail));
  const bool beyond = (scaled < 0 ? -scaled : scaled) > n.max;
  if (beyond) sums.saturated += 1;
  if (y == 0) {
    sums.to_zero += 1, sums.dead_x2 += x2;
    return binade_of(x);
  }
  if (on_grid < double(n.smallest_normal)) sums.subnormal += 1;
  if (beyond) sums.saturated_x2 += x2, sums.saturated_xe += xe, sums.saturated_e2 += e2;
  else sums.grid_x2 += x2, sums.grid_xe += xe, sums.grid_e2 += e2;
  return binade_of(x);
}

/// Returns a row of zeros on a device.
Tensor new_survey_row(Device device);
/// Adds statistics of a tensor to `row`; does nothing if `row` or x is undefined. y: the result for
/// x under `call` without its rotation; x itself if call is null. Any floating dtype, f64 converted
/// to f32; any strides.
void survey(const Tensor& x, const Tensor& y, const QuantizeCall* call, const Tensor& row);

}  // namespace halftone
