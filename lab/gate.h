// Statistics of a few runs, and the gate that compares two policies with them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halftone::lab {

// Summaries of numbers from several runs.

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

// Is the difference between two policies within a bound? Pairs of trainings from the same seeds,
// as many as their spread demands (Stein's two-stage procedure).

enum class Verdict : uint8_t { equivalent, better, worse, undecided };
/// "equivalent", "better", "worse", "undecided"
std::string_view name(Verdict verdict);

/// How much two losses may differ: relative (0.005: 0.5 %), or in the loss's units.
struct Bound {
  double value = 0.005;
  bool relative = true;

  /// Returns how a policy's loss differs from the reference's: log(loss / reference) if the bound
  /// is relative. (The mean of ratios would be above 1 for equal policies, the more the losses
  /// vary.) NaN for the ratio of losses that are not above 0, which says nothing.
  double difference(double loss, double reference) const;
  /// The bound of such differences.
  double of_differences() const;
  /// Returns what users see of such a difference: relative (0.005: 0.5 %), or in the loss's units.
  double shown(double difference) const;
};

struct GateAnswer {
  Verdict verdict = Verdict::undecided;
  Interval difference{};     // of the policy's loss from the reference's, as Bound::difference()
  int64_t pairs = 0;         // that were trained
  int64_t first = 0;         // that estimated the spread
  int64_t asked = 0;         // that the spread, or the distance from the bound, demanded
  int64_t would_decide = 0;  // pairs for a decision, if there is none; 0 otherwise
  double jump = 0;           // the difference farthest from the median; 0 if it is as usual
};

/// Equivalent: the interval is inside of -within to +within. Worse or better: it is beyond one of
/// them. A mean or half width that is not finite decides nothing.
Verdict verdict_of(Interval difference, double within);

/// The decisions of a gate, apart from its trainings: how many pairs are needed, and when to stop.
class Gate {
 public:
  /// `within` > 0: of differences. `first` >= 2 pairs estimate the spread. With `fixed` >
  /// 0 the gate asks for exactly as many pairs, and its interval is Student's. Throws UsageError
  /// for other numbers.
  Gate(double within, int64_t first, int64_t fixed = 0);

  /// How many pairs, in the order of their seeds, are needed next. Given `differences` of as many
  /// as the last call asked for (none before the first), returns more of them, or the same number:
  /// then nothing more is needed. After the first pairs it asks for as many as make the 95 %
  /// interval half as wide as the bound on either side; if the 99.5 % interval of the first pairs
  /// is beyond the bound, for none. That number depends on the spread alone: if it
  /// also depended on the mean, the interval would cover 90 % instead of 95 %.
  int64_t wanted(std::span<const double> differences);
  /// The answer that these differences give.
  GateAnswer answer(std::span<const double> differences) const;

 private:
  double within_;
  int64_t first_, fixed_, asked_ = 0;
};

/// Returns the share of seeds with a rare large difference that this number of pairs misses in one
/// gate of twenty: 1 - 0.05^(1 / pairs).
double unseen_share(int64_t pairs);

/// "equivalent: -0.08 % [-0.31, +0.15] at 95 %, 24 paired seeds (8 to estimate, 24 asked for)". For
/// a difference far from the others, and for *equivalent* from few pairs, more lines say what that
/// leaves open.
std::string text_of(const GateAnswer& answer, const Bound& bound);

/// Returns the predicate of a sentence about relative differences paired by seed, such as "is
/// equivalent to fp32 within 1 %: -0.1 ± 0.2 % with 8 seeds."
std::string verdict_text(const std::vector<double>& differences, const std::string& base);

/// "0.5%" -> 0.005, relative; "0.01" -> 0.01 in the loss's units. Throws UsageError for another
/// text and for numbers that are not above 0.
Bound bound_of(std::string_view text);

}  // namespace halftone::lab
