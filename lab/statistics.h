// Summaries of numbers from several runs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace halftone::lab {

/// Returns the middle number; the mean of the two middle ones if the count is even; NaN for none.
double median(std::vector<double> numbers);

/// Mean and half width of a 95 % interval of Student's t; infinite for fewer than two numbers.
struct Interval {
  double mean = 0, half = 0;
};
Interval interval_of(const std::vector<double>& numbers);

/// The t for which |T| <= t with probability `confidence`, for Student's T with `freedom` >= 1
/// degrees of freedom.
double student_quantile(int64_t freedom, double confidence = 0.95);

/// Standard deviation with n - 1 in the denominator; infinite for fewer than two numbers.
double deviation_of(std::span<const double> numbers);

/// Returns (loss - base) / |base|: below 0 for the smaller loss, also if losses are negative.
double relative_difference(double loss, double base);

/// Returns Spearman's rank correlation of two lists of equal length, with mean ranks for equal
/// numbers; NaN below two numbers.
double spearman(const std::vector<double>& x, const std::vector<double>& y);

// --- Stein's two-stage procedure (C. Stein, A two-sample test for a linear hypothesis whose power
// is independent of the variance, 1945): a first sample estimates the spread and fixes how many
// differences are needed. The interval then covers the mean with at least the confidence asked for
// if the differences are normal.

inline constexpr int64_t most_pairs = 1'000'000;

/// How many differences give an interval of half width `half` at 95 %, at least `first`, given the
/// deviation of the first sample of `first`; `most_pairs` if that is more.
int64_t pairs_needed(double deviation, int64_t first, double half);

/// Mean of all differences, and the half width that follows from the deviation of the `first` ones,
/// or from that of all, whichever is larger: the first ones may have missed a rare large
/// difference.
Interval two_stage_interval(std::span<const double> differences, int64_t first,
                            double confidence = 0.95);

}  // namespace halftone::lab
