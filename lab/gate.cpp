// Looks at the differences, and their words.
#include <halftone/lab/gate.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <halftone/core/error.h>
#include <halftone/core/quoted.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

namespace {
constexpr double early_confidence = 0.995;

/// "+0.31": a share in percent, without the sign %.
std::string points(double share) {
  if (!std::isfinite(share)) return share < 0 ? "-inf" : "inf";
  const std::string text = fixed(100 * share, 2);
  return share >= 0 ? "+" + text : text;
}

/// Without the zeros at its end: "0.5".
std::string bound_text(double within) { return number(100 * within, 4) + " %"; }
}  // namespace

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
  if (low > -within && high < within) return Verdict::equivalent;
  if (low > within) return Verdict::worse;
  if (high < -within) return Verdict::better;
  return Verdict::undecided;
}

Gate::Gate(double within, int64_t first, int64_t fixed)
    : within_(within), first_(fixed > 0 ? fixed : first), fixed_(fixed) {
  if (!(within > 0) || !std::isfinite(within) || first < 2 || fixed < 0 || fixed == 1)
    fail<UsageError>("gate", "the bound is ", 100 * within, " %, ", first,
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
  if (answer.verdict != Verdict::undecided || answer.pairs < first_) return answer;
  // A tenth of the bound is close enough to it: more pairs than that takes are not proposed.
  const double distance = std::abs(std::abs(answer.difference.mean) - within_);
  const double half = std::clamp(distance, within_ / 10, within_ / 2);
  answer.would_decide =
      std::max(answer.pairs + 1,
               pairs_needed(deviation_of(differences.first(std::size_t(first_))), first_, half));
  return answer;
}

std::string text_of(const GateAnswer& answer, double within) {
  std::string text(name(answer.verdict));
  if (answer.verdict == Verdict::worse || answer.verdict == Verdict::better)
    text += " by more than " + bound_text(within);
  if (answer.pairs < 2)
    return text + ": " + std::to_string(answer.pairs) +
           " complete pairs, and an interval takes at least 2";
  const Interval& d = answer.difference;
  text += ": " + points(d.mean) + " % [" + points(d.mean - d.half) + ", " +
          points(d.mean + d.half) + "] at 95 %, " + std::to_string(answer.pairs) +
          " paired seeds (" + std::to_string(std::min(answer.first, answer.pairs)) +
          " to estimate the spread, " + std::to_string(answer.asked) + " asked for)";
  if (answer.would_decide > 0)
    text += ", about " + std::to_string(answer.would_decide) + " would decide";
  return text;
}

double bound_of(std::string_view text) {
  const std::string_view digits = text.substr(0, text.size() - text.ends_with('%'));
  double value = 0;
  const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (!text.ends_with('%') || read.ec != std::errc() || read.ptr != digits.data() + digits.size() ||
      !(value > 0) || !std::isfinite(value))
    fail<UsageError>("gate", "the bound is ", in_quotes(std::string(text)),
                     ". Give a percentage above 0, for example 0.5%.");
  return value / 100;
}

}  // namespace halftone::lab
