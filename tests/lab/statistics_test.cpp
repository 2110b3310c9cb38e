// Medians and Student's intervals, against values from tables and a plain integration of Student's
// density.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <halftone/lab/statistics.h>

namespace halftone::test::statistics_test {
namespace {

using lab::Interval;
using lab::interval_of;
using lab::median;

/// Returns the probability that |T| < t for Student's T with n degrees of freedom: Simpson's rule
/// over the density Gamma((n + 1) / 2) / (sqrt(n pi) Gamma(n / 2)) (1 + x^2 / n)^(-(n + 1) / 2).
double probability_within(double t, double n) {
  const double scale =
      std::exp(std::lgamma((n + 1) / 2) - std::lgamma(n / 2)) / std::sqrt(n * std::acos(-1.0));
  const auto density = [&](double x) { return scale * std::pow(1 + x * x / n, -(n + 1) / 2); };
  constexpr int pieces = 20000;
  const double width = t / pieces;
  double sum = density(0) + density(t);
  for (int i = 1; i < pieces; ++i) sum += density(i * width) * (i % 2 == 1 ? 4 : 2);
  return 2 * sum * width / 3;
}

/// n numbers with mean 0 and sum of squares n - 1, so that their standard error is 1 / sqrt(n).
std::vector<double> with_unit_variance(int n) {
  std::vector<double> numbers(std::size_t(n), 0.0);
  const double half = std::sqrt((n - 1) / 2.0);
  numbers[0] = half, numbers[1] = -half;
  return numbers;
}

/// The quantile that interval_of() uses for n numbers.
double quantile_for(int n) {
  return interval_of(with_unit_variance(n)).half * std::sqrt(double(n));
}

TEST_CASE("rank correlations by hand") {
  CHECK(lab::spearman({1, 2, 3}, {10, 20, 15}) == doctest::Approx(0.5));
  CHECK(lab::spearman({1, 2, 3, 4}, {4, 3, 2, 1}) == doctest::Approx(-1));
  // Ties take mean ranks: 0.5, 0.5, 2 against 0, 1, 2.
  CHECK(lab::spearman({1, 1, 7}, {1, 2, 3}) == doctest::Approx(1.5 / std::sqrt(1.5 * 2)));
  CHECK(std::isnan(lab::spearman({1}, {2})));
}

TEST_CASE("medians of odd and even counts, in any order") {
  CHECK(median({5}) == 5);
  CHECK(median({1, 3}) == 2);
  CHECK(median({9, 1, 4}) == 4);
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(median({-1, -1, -1, 100}) == -1);
  CHECK(median({7, 7, 7}) == 7);
  CHECK(std::isnan(median({})));
}

TEST_CASE("a median does not depend on the order, and one outlier does not move it far") {
  std::vector<double> numbers;
  for (int i = 0; i < 101; ++i) numbers.push_back(i);
  std::mt19937 random(1);
  for (int i = 0; i < 10; ++i) {
    std::ranges::shuffle(numbers, random);
    CHECK(median(numbers) == 50);
  }
  *std::ranges::max_element(numbers) = 1e300;
  CHECK(median(numbers) == 50);
  CHECK(median({1, 2, std::numeric_limits<double>::infinity()}) == 2);
}

TEST_CASE("intervals by hand: the mean, and t s / sqrt(n)") {
  const Interval two = interval_of({1, 3});  // s = sqrt(2), n = 2: 12.706 sqrt(2) / sqrt(2)
  CHECK(two.mean == 2);
  CHECK(two.half == doctest::Approx(12.7062));
  const Interval three = interval_of({1, 2, 3});  // s = 1, n = 3
  CHECK(three.mean == 2);
  CHECK(three.half == doctest::Approx(4.30265 / std::sqrt(3.0)));
  const Interval five = interval_of({2, 4, 4, 6, 9});  // mean 5, squares 9 + 1 + 1 + 1 + 16 = 28
  CHECK(five.mean == 5);
  CHECK(five.half == doctest::Approx(2.77645 * std::sqrt(28.0 / 4 / 5)));
}

TEST_CASE("fewer than two numbers have no interval, equal ones an empty one") {
  CHECK(interval_of({3}).mean == 3);
  CHECK(std::isinf(interval_of({3}).half));
  CHECK(std::isnan(interval_of({}).mean));
  CHECK(std::isinf(interval_of({}).half));
  CHECK(interval_of({4, 4, 4, 4}).half == 0);
  CHECK(interval_of({4, 4, 4, 4}).mean == 4);
  CHECK(std::isnan(interval_of({1, std::nan("")}).mean));
}

TEST_CASE("quantiles are those of a printed table") {
  // 0.975 quantiles: NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
  const std::pair<int, double> table[] = {{1, 12.706}, {2, 4.303},  {3, 3.182},  {4, 2.776},
                                          {5, 2.571},  {9, 2.262},  {14, 2.145}, {19, 2.093},
                                          {24, 2.064}, {29, 2.045}, {30, 2.042}, {31, 2.040},
                                          {40, 2.021}, {60, 2.000}, {100, 1.984}};
  for (const auto& [freedom, t] : table) {
    CAPTURE(freedom);
    CHECK(quantile_for(freedom + 1) == doctest::Approx(t).epsilon(3e-4));
  }
}

TEST_CASE("95 % of Student's distribution are within each quantile") {
  CHECK(probability_within(1, 1) == doctest::Approx(0.5));  // Cauchy's quartile
  CHECK(probability_within(1.96, 1e6) == doctest::Approx(0.95).epsilon(1e-4));
  for (int freedom = 1; freedom <= 200; freedom += freedom < 40 ? 1 : 20) {
    CAPTURE(freedom);
    CHECK(probability_within(quantile_for(freedom + 1), freedom) ==
          doctest::Approx(0.95).epsilon(1.5e-4));
  }
}

TEST_CASE("quantiles fall with the degrees of freedom, also where the table ends") {
  for (int n = 3; n < 60; ++n) {
    CAPTURE(n);
    CHECK(quantile_for(n) < quantile_for(n - 1));
  }
}

TEST_CASE("an interval shifts and scales with its numbers") {
  const std::vector<double> numbers{0.5, 1.25, -3, 2, 8, 1};
  const Interval plain = interval_of(numbers);
  std::vector<double> others = numbers;
  for (double& x : others) x = 10 - 4 * x;
  const Interval other = interval_of(others);
  CHECK(other.mean == doctest::Approx(10 - 4 * plain.mean));
  CHECK(other.half == doctest::Approx(4 * plain.half));
}

TEST_CASE("19 of 20 intervals hold the mean of the distribution") {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(2, 5);
  int inside = 0;
  constexpr int trials = 4000;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> numbers;
    for (int i = 0; i < 3 + trial % 6; ++i) numbers.push_back(normal(random));
    const Interval interval = interval_of(numbers);
    inside += std::abs(interval.mean - 2) <= interval.half;
  }
  // 3800 on average, with a standard deviation of sqrt(4000 * 0.95 * 0.05) = 13.8.
  CHECK(inside > 3800 - 70);
  CHECK(inside < 3800 + 70);
}

}  // namespace
}  // namespace halftone::test::statistics_test
