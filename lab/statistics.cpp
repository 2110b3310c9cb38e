// Student's t for small samples, and rank correlation.
#include <halftone/lab/statistics.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

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

}  // namespace halftone::lab
