// Moves rows to the host, and derives statistics from their numbers.
#include <halftone/core/formats/survey.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>

namespace halftone {

namespace {
constexpr double nothing = std::numeric_limits<double>::quiet_NaN();
double share(double part, double whole) { return whole > 0 ? part / whole : nothing; }

/// Returns e if 2^e is halfway to a format's smallest number.
int vanishing_exponent(const NumberFormat& format) {
  return format.min_exponent - (format.subnormals ? format.significand_bits : 1);
}
}  // namespace

Survey Survey::from(const Tensor& row) {
  if (!row.defined() || row.dtype() != f64 || row.numel() != row_length || row.rank() != 1)
    fail<UsageError>("survey", "a row is a vector of ", row_length,
                     " f64 numbers. Make it with new_survey_row().");
  Survey result;
  const std::vector<double> numbers = row.to_vector<double>();
  std::memcpy(static_cast<void*>(&result), numbers.data(), sizeof result);
  return result;
}

void Survey::merge(const Survey& other) {
  for (std::size_t i = 0; i < binade.size(); ++i) binade[i] += other.binade[i];
  sums.merge(other.sums);
}

double Survey::underflow(bool zeros_count) const {
  return share(sums.to_zero, zeros_count ? sums.count : sums.count - sums.zeros);
}
double Survey::saturation() const { return share(sums.saturated, sums.count); }
double Survey::sqnr() const {
  return sums.sum_x2 > 0 ? 10 * std::log10(sums.sum_x2 / sums.sum_e2) : nothing;
}
double Survey::bias() const { return share(sums.sum_e, sums.sum_abs_x); }
double Survey::bias_t() const {
  const double n = sums.count - sums.infinite - sums.nan - sums.to_infinity;
  if (n < 2) return nothing;
  const double mean = sums.sum_e / n,
               variance = std::max(0.0, sums.sum_e2 - n * mean * mean) / (n - 1);
  return variance > 0 ? mean / std::sqrt(variance / n) : (mean == 0 ? 0 : nothing);
}
double Survey::mean_relative_error() const {
  return share(sums.sum_relative,
               sums.count - sums.zeros - sums.infinite - sums.nan - sums.to_infinity);
}
ErrorParts Survey::error_parts() const {
  const SurveySums& s = sums;
  const double x2 = s.dead_x2 + s.saturated_x2 + s.grid_x2;
  if (x2 == 0 && s.sum_e2 > 0) return {nothing, nothing, nothing, nothing};
  if (x2 == 0) return {};
  const double xe = s.saturated_xe + s.grid_xe - s.dead_x2, gain = xe / x2;  // a - 1
  const auto rest = [&](double part_x2, double part_xe, double part_e2) {
    return std::max(0.0, part_e2 + gain * (gain * part_x2 - 2 * part_xe));
  };
  return {.scale = gain * xe,
          .dead_zone = rest(s.dead_x2, -s.dead_x2, s.dead_x2),
          .grid = rest(s.grid_x2, s.grid_xe, s.grid_e2),
          .saturation = rest(s.saturated_x2, s.saturated_xe, s.saturated_e2)};
}
double Survey::norm_to_noise() const {
  return sums.sum_x2 > 0 ? std::sqrt(sums.sum_x2 / sums.sum_e2) : nothing;
}
double Survey::root_mean_square() const {
  return std::sqrt(share(sums.sum_x2, sums.count - sums.infinite - sums.nan));
}

double Survey::share_below(int exponent) const {
  double below = 0, all = 0;
  for (int i = 0; i < binades; ++i) {
    all += binade[std::size_t(i)];
    if (i + lowest_exponent < exponent) below += binade[std::size_t(i)];
  }
  return share(below, all);
}
double Survey::would_underflow(const NumberFormat& format, int lift) const {
  return share_below(vanishing_exponent(format) - lift);
}
double Survey::would_overflow(const NumberFormat& format, int lift) const {
  return 1 - share_below(std::ilogb(format.max) + 1 - lift);
}

std::optional<int> Survey::sufficient_lift(const NumberFormat& format, double tolerated) const {
  int lowest = lowest_exponent, highest = 127;
  while (highest >= lowest_exponent && binade[std::size_t(highest - lowest_exponent)] == 0)
    --highest;
  if (highest < lowest_exponent) return {};
  while (share_below(lowest + 1) <= tolerated && lowest < highest) ++lowest;
  return std::min(vanishing_exponent(format) - lowest, std::ilogb(format.max) - highest);
}

Tensor new_survey_row(Device device) {
  const MemoryScope scope(MemoryUse::workspace);
  return zeros({Survey::row_length}, f64, device);
}

namespace {
/// Returns x as rows of a matrix, in a dtype that kernels read.
Tensor as_rows(const Tensor& x) {
  Tensor rows = views::contiguous(x);
  if (rows.dtype() != f32 && rows.dtype() != bf16 && rows.dtype() != f16) rows = rows.to(f32);
  return rows.rank() == 0 ? views::reshaped(rows, {1}) : rows;
}
}  // namespace

void survey(const Tensor& x, const Tensor& y, const QuantizeCall* call, const Tensor& row) {
  if (!row.defined() || !x.defined() || x.numel() == 0) return;
  const MemoryScope scope(MemoryUse::workspace);
  const bool same = x.body() == y.body();
  const Tensor from = as_rows(x), to = same ? from : as_rows(y);
  Tensor into = row;
  backend_for(x).survey(from, to, call, into);
}

}  // namespace halftone
