// Statistics of a few runs, and the gate that compares two policies with them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halftone::lab {

// Summaries of numbers from several runs.

/// Returns the middle number; if the count is even, the mean of the two middle ones; NaN for none.
double median(std::vector<double> numbers);

/// A mean, and the half width of its 95 % interval (Student's t): infinite below two numbers.
struct Interval {
  double mean = 0, half = 0;
};
Interval interval_of(const std::vector<double>& numbers);

/// Returns the t for which |T| <= t with probability `confidence`, for a T of Student's
/// distribution with `freedom` >= 1 degrees of freedom.
double student_quantile(int64_t freedom, double confidence = 0.95);

/// Returns the standard deviation, with divisor n - 1; infinite for fewer than two numbers.
double deviation_of(std::span<const double> numbers);

/// Returns (loss - base) / |base|. It is below 0 if `loss` is smaller, also for negative losses.
double relative_difference(double loss, double base);

/// Returns Spearman's rank correlation of two lists of equal length, with mean ranks for equal
/// numbers; NaN below two numbers.
double spearman(const std::vector<double>& x, const std::vector<double>& y);

// --- Stein's two-stage procedure (C. Stein, A two-sample test for a linear hypothesis whose power
// is independent of the variance, 1945): a first sample estimates the spread and fixes how many
// differences are needed. The interval then covers the mean with at least the confidence asked for
// if the differences are normal.

inline constexpr int64_t most_pairs = 1'000'000;

/// Returns how many differences, from `first` to most_pairs, give a 95 % interval of half width
/// `half`, if the first `first` of them have the standard deviation `deviation`.
int64_t pairs_needed(double deviation, int64_t first, double half);

/// Returns the mean of all differences, and the larger of two half widths: one from the deviation
/// of the first `first`, which may have missed a rare large difference, one from that of all.
Interval two_stage_interval(std::span<const double> differences, int64_t first,
                            double confidence = 0.95);

// Is the difference between two policies within a bound? Pairs of trainings from the same seeds,
// as many as their spread demands (Stein's two-stage procedure).

enum class Verdict : uint8_t { equivalent, better, worse, undecided };
/// Returns "equivalent", "better", "worse" or "undecided".
std::string_view name(Verdict verdict);

/// How much two losses may differ: relative (0.005: 0.5 %), or in the loss's units.
struct Bound {
  double value = 0.005;
  bool relative = true;

  /// Returns loss - reference, or log(loss / reference) if the bound is relative. (The mean of
  /// plain ratios would be above 1 for equal policies, the more the losses vary.) Returns NaN if
  /// the bound is relative and a loss is not above 0.
  double difference(double loss, double reference) const;
  /// Returns the bound for results of difference(): `value`, or log(1 + value) if it is relative.
  double of_differences() const;
  /// Converts a result of difference() to the form of `value`: relative, or in the loss's units.
  double shown(double difference) const;
};

struct GateAnswer {
  Verdict verdict = Verdict::undecided;
  Interval difference{};     // of losses, as Bound::difference() gives it
  int64_t pairs = 0;         // pairs that were trained
  int64_t first = 0;         // pairs that estimated the spread
  int64_t asked = 0;         // pairs that the Gate asked for
  int64_t would_decide = 0;  // pairs for a decision if undecided; otherwise 0
  double jump = 0;           // the farthest outlier among the differences; 0: none
};

/// Returns equivalent if the interval is inside of -within to +within, worse if it is above that
/// range, better if it is below, otherwise undecided, as is an interval that is not finite.
Verdict verdict_of(Interval difference, double within);

/// The decisions of a gate, apart from its trainings: how many pairs are needed, and when to stop.
class Gate {
 public:
  /// `within` > 0: the bound of differences. `first` >= 2 pairs estimate the spread. With `fixed`
  /// >= 2 the gate asks for exactly `fixed` pairs, and its interval is Student's; 0: by the spread.
  /// Throws UsageError for other numbers.
  Gate(double within, int64_t first, int64_t fixed = 0);

  /// Returns how many pairs, in the order of their seeds, are needed in total. Call it first
  /// without differences, then with those of as many pairs as the last call returned, until it
  /// returns the same number again. After the first pairs it asks for as many as make the half
  /// width of the 95 % interval half of the bound. If the 99.5 % interval of the first pairs is
  /// beyond the bound, it asks for no more. Otherwise the number depends on the spread alone: if it
  /// also depended on the mean, the interval would cover 90 % instead of 95 %.
  int64_t wanted(std::span<const double> differences);
  /// Returns the answer from these differences.
  GateAnswer answer(std::span<const double> differences) const;

 private:
  double within_;
  int64_t first_, fixed_, asked_ = 0;
};

/// Returns 1 - 0.05^(1 / pairs). If this share of all seeds gives a large difference, a gate with
/// `pairs` pairs has a probability of 5 % to see none of them.
double unseen_share(int64_t pairs);

/// Returns a text such as "equivalent: -0.08 % [-0.31, +0.15] at 95 %, 24 paired seeds (8 to
/// estimate the spread, 24 asked for)". If one difference is an outlier, or fewer than 100 pairs
/// gave *equivalent*, adds a line that says what is left open.
std::string text_of(const GateAnswer& answer, const Bound& bound);

/// Returns the end of a sentence about relative differences paired by seed, without its subject:
/// "is equivalent to fp32 within 1 %: -0.1 ± 0.2 % with 8 seeds."
std::string verdict_text(const std::vector<double>& differences, const std::string& base);

/// Parses a bound: "0.5%" is 0.005, relative; "0.01" is 0.01 in the loss's units. Throws UsageError
/// for other texts and for numbers that are not above 0.
Bound bound_of(std::string_view text);

}  // namespace halftone::lab
