// Student's t for small samples.
#include <halftone/lab/statistics.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

namespace halftone::lab {

double median(std::vector<double> numbers) {
  if (numbers.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::ranges::sort(numbers);
  const std::size_t half = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[half] : (numbers[half - 1] + numbers[half]) / 2;
}

namespace {

/// The 0.975 quantile of Student's t: up to 30 degrees of freedom from a table, above with the
/// first terms of its expansion around the normal distribution's z (Abramowitz & Stegun 26.7.5).
double student_quantile(std::size_t freedom) {
  constexpr double quantiles[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                  2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                  2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                  2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
  if (freedom <= std::size(quantiles)) return quantiles[freedom - 1];
  constexpr double z = 1.959964, z3 = z * z * z, z5 = z3 * z * z;
  const auto n = double(freedom);
  return z + (z3 + z) / (4 * n) + (5 * z5 + 16 * z3 + 3 * z) / (96 * n * n);
}

}  // namespace

Interval interval_of(const std::vector<double>& numbers) {
  const auto n = double(numbers.size());
  Interval result{.mean = std::accumulate(numbers.begin(), numbers.end(), 0.0) / n,
                  .half = std::numeric_limits<double>::infinity()};
  if (numbers.size() < 2) return result;
  double squares = 0;
  for (const double x : numbers) squares += (x - result.mean) * (x - result.mean);
  const std::size_t freedom = numbers.size() - 1;
  result.half = student_quantile(freedom) * std::sqrt(squares / double(freedom) / n);
  return result;
}

}  // namespace halftone::lab
