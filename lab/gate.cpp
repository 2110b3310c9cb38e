// Student's t for small samples, and rank correlation.
#include <halftone/lab/gate.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include <halftone/core/error.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

double median(std::vector<double> numbers) {
  if (numbers.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::ranges::sort(numbers);
  const std::size_t half = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2;
}

namespace {
/// The probability that |T| <= t (Abramowitz & Stegun 26.7.3 and 26.7.4, exact for whole degrees of
/// freedom).
double probability_within(double t, int64_t freedom) {
  const double angle = std::atan(t / std::sqrt(double(freedom)));
  const double sine = std::sin(angle), cosine = std::cos(angle);
  const bool odd = freedom % 2 == 1;
  double term = odd ? cosine : 1, sum = 0;
  for (int64_t power = odd ? 1 : 0; power <= freedom - 2; power += 2) {
    sum += term;
    term *= cosine * cosine * double(power + 1) / double(power + 2);
  }
  return odd ? (angle + sine * sum) * 2 / std::numbers::pi : sine * sum;
}
}  // namespace

double student_quantile(int64_t freedom, double confidence) {
  double low = 0, high = 1e4;
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (probability_within(middle, freedom) < confidence ? low : high) = middle;
  }
  return high;
}

Interval interval_of(const std::vector<double>& numbers) {
  const auto n = double(numbers.size());
  Interval result{.mean = std::accumulate(numbers.begin(), numbers.end(), 0.0) / n,
                  .half = std::numeric_limits<double>::infinity()};
  if (numbers.size() < 2) return result;
  result.half =
      student_quantile(int64_t(numbers.size()) - 1) * deviation_of(numbers) / std::sqrt(n);
  return result;
}

double relative_difference(double loss, double base) { return (loss - base) / std::abs(base); }

double deviation_of(std::span<const double> numbers) {
  const auto n = double(numbers.size());
  if (numbers.size() < 2) return std::numeric_limits<double>::infinity();
  const double mean = std::accumulate(numbers.begin(), numbers.end(), 0.0) / n;
  double squares = 0;
  for (const double x : numbers) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / (n - 1));
}

int64_t pairs_needed(double deviation, int64_t first, double half) {
  if (first < 2 || !(half > 0) || !std::isfinite(deviation)) return most_pairs;
  const double ratio = student_quantile(first - 1) * deviation / half;
  return std::max(
      first, ratio * ratio < double(most_pairs) ? int64_t(std::ceil(ratio * ratio)) : most_pairs);
}

Interval two_stage_interval(std::span<const double> differences, int64_t first, double confidence) {
  Interval result = interval_of({differences.begin(), differences.end()});
  const auto used = std::size_t(std::min<int64_t>(first, std::ssize(differences)));
  if (used < 2) return result;
  const auto spread = [&](std::span<const double> some) {
    return student_quantile(std::ssize(some) - 1, confidence) * deviation_of(some);
  };
  result.half = std::max(spread(differences.first(used)), spread(differences)) /
                std::sqrt(double(differences.size()));
  return result;
}

namespace {
/// Returns the ranks of numbers, from 0; equal numbers have the mean of their ranks.
std::vector<double> ranks_of(const std::vector<double>& x) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::size_t i) { return x[i]; });
  std::vector<double> ranks(x.size());
  for (std::size_t i = 0; i < order.size();) {
    std::size_t end = i;
    while (end < order.size() && x[order[end]] == x[order[i]]) ++end;
    for (std::size_t k = i; k < end; ++k) ranks[order[k]] = double(i + end - 1) / 2;
    i = end;
  }
  return ranks;
}
}  // namespace

double spearman(const std::vector<double>& x, const std::vector<double>& y) {
  const std::vector<double> a = ranks_of(x), b = ranks_of(y);
  const double mean = (double(x.size()) - 1) / 2;
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double p = a[i] - mean, q = b[i] - mean;
    ab += p * q, aa += p * p, bb += q * q;
  }
  return ab / std::sqrt(aa * bb);
}

// Looks at the differences, and their words.

namespace {
constexpr double early_confidence = 0.995;

/// "+0.31": a difference, in percent or in the loss's units.
std::string points(double difference, const Bound& bound) {
  if (!std::isfinite(difference)) return difference < 0 ? "-inf" : "inf";
  const std::string text =
      bound.relative ? fixed(100 * bound.shown(difference), 2) : number(difference, 3);
  return difference >= 0 ? "+" + text : text;
}

/// Without the zeros at its end: "0.5 %".
std::string bound_text(const Bound& bound) {
  return bound.relative ? number(100 * bound.value, 4) + " %" : number(bound.value, 4);
}

/// Returns the difference farthest from the median, if it is farther than 6 deviations; 0
/// otherwise. The deviation is taken from the median distance, which a few do not change. Normal
/// differences are that far in one gate of 1,000.
double jump_in(std::span<const double> differences) {
  if (differences.size() < 8) return 0;
  const double middle = median({differences.begin(), differences.end()});
  std::vector<double> distances;
  for (const double x : differences) distances.push_back(std::abs(x - middle));
  const auto farthest = std::size_t(std::ranges::max_element(distances) - distances.begin());
  constexpr double deviations = 1.4826;  // of a normal number, in median distances
  return distances[farthest] > 6 * deviations * median(distances) ? differences[farthest] : 0;
}
}  // namespace

double Bound::difference(double loss, double reference) const {
  if (!relative) return loss - reference;
  const bool sensible = reference > 0 && (loss > 0 || std::isnan(loss));
  return sensible ? std::log(loss / reference) : std::numeric_limits<double>::quiet_NaN();
}
double Bound::shown(double difference) const {
  return relative ? std::expm1(difference) : difference;
}
double Bound::of_differences() const { return relative ? std::log1p(value) : value; }

double unseen_share(int64_t pairs) { return 1 - std::pow(0.05, 1 / double(pairs)); }

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::equivalent: return "equivalent";
    case Verdict::better: return "better";
    case Verdict::worse: return "worse";
    case Verdict::undecided: break;
  }
  return "undecided";
}

Verdict verdict_of(Interval difference, double within) {
  const double low = difference.mean - difference.half, high = difference.mean + difference.half;
  if (!std::isfinite(low) || !std::isfinite(high)) return Verdict::undecided;
  if (low > -within && high < within) return Verdict::equivalent;
  if (low > within) return Verdict::worse;
  if (high < -within) return Verdict::better;
  return Verdict::undecided;
}

Gate::Gate(double within, int64_t first, int64_t fixed)
    : within_(within), first_(fixed > 0 ? fixed : first), fixed_(fixed) {
  if (!(within > 0) || !std::isfinite(within) || first < 2 || fixed < 0 || fixed == 1)
    fail<UsageError>("gate", "the bound is ", within, ", ", first,
                     " pairs estimate the spread, and ", fixed,
                     " are fixed. Use a bound above 0 and at least 2 pairs.");
}

int64_t Gate::wanted(std::span<const double> differences) {
  if (asked_ == 0) return asked_ = first_;
  if (asked_ > first_ || fixed_ > 0) return asked_;
  const Verdict early =
      verdict_of(two_stage_interval(differences, first_, early_confidence), within_);
  if (early == Verdict::worse || early == Verdict::better) return asked_;
  const double deviation = deviation_of(differences.first(std::size_t(first_)));
  return asked_ = pairs_needed(deviation, first_, within_ / 2);
}

GateAnswer Gate::answer(std::span<const double> differences) const {
  GateAnswer answer{.pairs = std::ssize(differences), .first = first_, .asked = asked_};
  answer.difference = two_stage_interval(differences, first_);
  answer.verdict = verdict_of(answer.difference, within_);
  answer.jump = jump_in(differences);
  if (answer.verdict != Verdict::undecided || answer.pairs < first_) return answer;
  // A tenth of the bound is close enough to it: more pairs than that takes are not proposed.
  const double distance = std::abs(std::abs(answer.difference.mean) - within_);
  const double half = std::clamp(distance, within_ / 10, within_ / 2);
  answer.would_decide = std::max(
      answer.pairs + 1,
      std::max(pairs_needed(deviation_of(differences.first(std::size_t(first_))), first_, half),
               pairs_needed(deviation_of(differences), answer.pairs, half)));
  return answer;
}

std::string text_of(const GateAnswer& answer, const Bound& bound) {
  std::string text(name(answer.verdict));
  if (answer.verdict == Verdict::worse || answer.verdict == Verdict::better)
    text += " by more than " + bound_text(bound);
  if (answer.pairs < 2)
    return text + ": " + std::to_string(answer.pairs) +
           " complete pairs, and an interval takes at least 2";
  const Interval& d = answer.difference;
  const std::string unit = bound.relative ? " %" : "";
  text += ": " + points(d.mean, bound) + unit + " [" + points(d.mean - d.half, bound) + ", " +
          points(d.mean + d.half, bound) + "] at 95 %, " + std::to_string(answer.pairs) +
          " paired seeds (" + std::to_string(std::min(answer.first, answer.pairs)) +
          " to estimate the spread, " + std::to_string(answer.asked) + " asked for)";
  if (answer.would_decide > 0)
    text += ", about " + std::to_string(answer.would_decide) + " would decide";
  if (answer.jump != 0)
    text += "\none pair differs by " + points(answer.jump, bound) + unit +
            ", far from the others: the interval may be too narrow";
  else if (answer.verdict == Verdict::equivalent && answer.pairs < 100)
    text += "\njumps in up to " + fixed(100 * unseen_share(answer.pairs), 0) +
            " % of the seeds may have been missed";
  return text;
}

std::string verdict_text(const std::vector<double>& differences, const std::string& base) {
  if (differences.empty()) return "has no seed in common with " + base + ".";
  const Interval d = interval_of(differences);
  const auto n = std::ssize(differences);
  const std::string value = interval_text(100 * d.mean, 100 * d.half) + " %",
                    seeds = std::to_string(n) + " seeds";
  if (n < 2)
    return "differs from " + base + " by " + value +
           ": undecided with one seed, which gives no "
           "interval.";
  Gate gate(0.01, n, n);
  static_cast<void>(gate.wanted({}));
  const GateAnswer answer = gate.answer(differences);
  const double digit =
      std::pow(10, std::floor(std::log10(std::max(double(answer.would_decide), 10.0))) - 1);
  const std::string about = fixed(std::ceil(double(answer.would_decide) / digit) * digit, 0),
                    more = answer.would_decide >= 100'000
                               ? ""
                               : "; about " + about + " seeds would tell whether it is within 1 %";
  const bool lower = d.mean<-d.half, higher = d.mean> d.half;
  const char* const way = lower ? "better" : "worse";
  if (answer.verdict == Verdict::equivalent)
    return "is equivalent to " + base + " within 1 %" +
           (lower || higher ? std::string(", and ") + way + " than 0" : "") + ": " + value +
           " with " + seeds + ".";
  if (!lower && !higher)
    return "differs from " + base + " by " + value + ": undecided with " + seeds + more + ".";
  return std::string("is ") + way + " than " + base + ": " + value + " with " + seeds +
         (answer.verdict == Verdict::undecided ? ", by more or less than 1 %" + more : "") + ".";
}

Bound bound_of(std::string_view text) {
  const bool relative = text.ends_with('%');
  const std::string_view digits = text.substr(0, text.size() - relative);
  double value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (read.ec != std::errc() || read.ptr != digits.data() + digits.size() || !(value > 0) ||
      !std::isfinite(value))
    fail<UsageError>("gate", "the bound is ", in_quotes(std::string(text)),
                     ". Give a percentage above 0, for example 0.5%, or a difference in the loss's "
                     "units, for example 0.01.");
  return {relative ? value / 100 : value, relative};
}

}  // namespace halftone::lab
