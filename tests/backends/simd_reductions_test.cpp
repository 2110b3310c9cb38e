// Sums, maxima, row kernels and pooling kernels of every instruction set, compared with double.
#include "simd_levels.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace halftone::test::simd_reductions_test {
namespace {

constexpr double eps = 0x1p-23;

double magnitude(const std::vector<float>& x, int64_t n) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += std::abs(double(x[std::size_t(i)]));
  return total;
}
/// Float sums within blocks of 4096 over at least 16 ways: up to 256 + 16 additions in a row.
double sum_bound(double terms_magnitude) { return 272 * eps / 2 * terms_magnitude; }

TEST_CASE("sums of any length") {
  Numbers numbers(20);
  const std::vector<float> x = numbers.many(9001, -1, 3);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : lengths()) {
      INFO(n, " elements");
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < n; ++i)
        sum += double(x[std::size_t(i)]), squares += std::pow(double(x[std::size_t(i)]), 2);
      CHECK(std::abs(k.sum(x.data(), n) - sum) <= sum_bound(magnitude(x, n)));
      CHECK(std::abs(k.sum_of_squares(x.data(), n) - squares) <= sum_bound(squares));
    }
  });
}

TEST_CASE("squares that float does not hold are summed in double") {
  Numbers numbers(24);
  for (const double scale : {1e-44, 1e-38, 1e-25, 1e-19, 1e18, 1e19, 1e38}) {
    INFO("numbers of ", scale);
    std::vector<float> x = numbers.many(9001, -1, 3);
    for (float& value : x) value = float(double(value) * scale);
    double squares = 0;
    for (const float value : x) squares += double(value) * double(value);
    each_level([&](const simd::Kernels& k) {
      CHECK(std::abs(k.sum_of_squares(x.data(), 9001) - squares) <= sum_bound(squares));
    });
  }
}

TEST_CASE("a long sum of ones is exact, far beyond where float stops counting") {
  const std::vector<float> ones((1 << 24) + 4099, 1.0f);
  each_level([&](const simd::Kernels& k) {
    CHECK(k.sum(ones.data(), int64_t(ones.size())) == double(ones.size()));
  });
}

TEST_CASE("the largest and the smallest element, at every position; NaN wins") {
  Numbers numbers(21);
  const float inf = std::numeric_limits<float>::infinity();
  each_level([&](const simd::Kernels& k) {
    CHECK(k.max(nullptr, 0) == -inf);
    CHECK(k.min(nullptr, 0) == inf);
    for (const int64_t n : {1, 2, 15, 16, 17, 63, 129, 1000}) {
      const std::vector<float> x = numbers.many(n, -9, -1);
      for (const auto place : {std::size_t(0), std::size_t(n / 2), std::size_t(n - 1)}) {
        std::vector<float> y = x;
        y[place] = -0.5f;
        CHECK(k.max(y.data(), n) == -0.5f);
        y[place] = -10;
        CHECK(k.min(y.data(), n) == -10);
        y[place] = std::numeric_limits<float>::quiet_NaN();
        CHECK(std::isnan(k.max(y.data(), n)));
        CHECK(std::isnan(k.min(y.data(), n)));
      }
    }
  });
}

TEST_CASE("extremes of columns continue from earlier values; NaN wins and stays") {
  Numbers numbers(25);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x = numbers.many(40 * 200);
  x[3 * 200 + 5] = nan;
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : {1, 3, 16, 64, 65, 131})
      for (const int64_t rows : {0, 1, 3, 37}) {
        std::vector<float> most(std::size_t(n) + 1, 0.0f), least = most;
        most[0] = nan;
        k.max_rows(x.data(), rows, 200, n, most.data());
        k.min_rows(x.data(), rows, 200, n, least.data());
        CHECK(std::isnan(most[0]));
        for (std::size_t j = 1; j <= std::size_t(n); ++j) {
          float largest = 0, smallest = 0;
          bool any_nan = false;
          for (int64_t i = 0; i < rows && int64_t(j) < n; ++i) {
            const float v = x[std::size_t(i * 200) + j];
            largest = std::max(largest, v), smallest = std::min(smallest, v);
            any_nan = any_nan || std::isnan(v);
          }
          const bool same = any_nan ? std::isnan(most[j]) && std::isnan(least[j])
                                    : most[j] == largest && least[j] == smallest;
          INFO(n, " columns, ", rows, " rows, column ", j);
          CHECK(same);
        }
      }
  });
}

TEST_CASE("columns are summed with any row stride") {
  Numbers numbers(22);
  const std::vector<float> x = numbers.many(40 * 200);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : {1, 3, 16, 64, 65, 131})
      for (const int64_t rows : {0, 1, 2, 37}) {
        std::vector<float> y(std::size_t(n) + 1, -1.0f);
        k.add_rows(x.data(), rows, 200, n, y.data());
        const auto truth = [&](std::size_t j) {
          double total = 0;
          for (int64_t i = 0; i < rows; ++i) total += double(x[std::size_t(i * 200) + j]);
          return int64_t(j) < n ? total : -1;
        };
        CHECK(first_beyond(y, truth, [&](std::size_t) { return 38 * eps * 2 * 37; }) == "");
      }
  });
}

// --- rows

std::vector<double> exact_softmax(const std::vector<float>& x, bool logarithm) {
  double top = *std::max_element(x.begin(), x.end()), total = 0;
  for (const float v : x) total += std::exp(double(v) - top);
  std::vector<double> y;
  for (const float v : x)
    y.push_back(logarithm ? double(v) - top - std::log(total) : std::exp(double(v) - top) / total);
  return y;
}

TEST_CASE("softmax, its logarithm and its backward") {
  Numbers numbers(23);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : {1, 2, 10, 16, 33, 1000, 5000})
      for (const bool logarithm : {false, true}) {
        INFO(n, " elements, logarithm ", logarithm);
        const std::vector<float> x = numbers.many(n, -8, 8), dy = numbers.many(n);
        std::vector<float> y(x.size()), dx(x.size());
        k.softmax(x.data(), n, logarithm, y.data());
        const std::vector<double> truth = exact_softmax(x, logarithm);
        // exp(x - top) magnifies the rounding of its argument, which is up to 16; the logarithm is
        // a difference of such values.
        const auto bound_of = [&](std::size_t i) {
          return (32 + std::sqrt(double(n))) * eps * (logarithm ? 1 : truth[i]);
        };
        CHECK(first_beyond(
                  y, [&](std::size_t i) { return truth[i]; }, bound_of) == "");
        k.softmax_backward(y.data(), dy.data(), n, logarithm, dx.data());
        double sum = 0;
        for (std::size_t i = 0; i < x.size(); ++i)
          sum += logarithm ? double(dy[i]) : double(dy[i]) * double(y[i]);
        const auto gradient = [&](std::size_t i) {
          return logarithm ? double(dy[i]) - std::exp(double(y[i])) * sum
                           : double(y[i]) * (double(dy[i]) - sum);
        };
        const double bound = (4 + std::sqrt(double(n))) * eps * (2 + std::abs(sum));
        CHECK(first_beyond(dx, gradient, [&](std::size_t) { return bound; }) == "");
      }
  });
}

TEST_CASE("sums of exponentials, also of infinities") {
  const float inf = std::numeric_limits<float>::infinity();
  Numbers numbers(24);
  each_level([&](const simd::Kernels& k) {
    const auto log_sum_exp = [&](const std::vector<float>& x) {
      float shift;
      const float sum = k.exp_sum(x.data(), int64_t(x.size()), &shift);
      return double(shift) + std::log(double(sum));
    };
    for (const int64_t n : {1, 7, 64, 1000}) {
      const std::vector<float> x = numbers.many(n, 90, 110);
      double total = 0;
      for (const float v : x) total += std::exp(double(v) - 100);
      CHECK(log_sum_exp(x) == doctest::Approx(100 + std::log(total)).epsilon(4 * eps));
    }
    CHECK(log_sum_exp({-inf, -inf, -inf}) == -inf);
    CHECK(log_sum_exp({1, inf, 2}) == inf);
    CHECK(log_sum_exp({-inf, 0, -inf}) == 0);
    CHECK(std::isnan(log_sum_exp({1, std::nanf(""), 2})));
  });
}

TEST_CASE("sums along rows do not get worse with their length") {
  // Tenths, which floats cannot represent: each addition to a long sum would round in the same
  // direction.
  const int64_t n = 1 << 20;
  const std::vector<float> x(std::size_t(n), 0.1f), ones(std::size_t(n), 1.0f);
  each_level([&](const simd::Kernels& k) {
    const double expected = double(0.1f) * double(n);
    CHECK(k.dot(x.data(), ones.data(), n) == doctest::Approx(expected).epsilon(8 * eps));
    float mean, total;
    double variance = 0, squares = 0, sum = 0;
    k.moments(x.data(), n, &mean, &variance);
    CHECK(mean == doctest::Approx(double(0.1f)).epsilon(8 * eps));
    const int64_t rows = 4096;
    k.add_rows(x.data(), rows, 1, 1, &total);
    CHECK(total == doctest::Approx(double(0.1f) * double(rows)).epsilon(16 * eps));
    const float zero = 0;
    k.channel_moments(x.data(), &zero, rows, 1, &sum, &squares);
    CHECK(sum == doctest::Approx(double(0.1f) * double(rows)).epsilon(16 * eps));
    CHECK(squares == doctest::Approx(double(0.1f) * double(0.1f) * double(rows)).epsilon(16 * eps));
  });
}

TEST_CASE("moments far from zero, and normalization by them") {
  Numbers numbers(25);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t n : {1, 5, 32, 33, 1000}) {
      const std::vector<float> x = numbers.many(n, 99, 101), w = numbers.many(n),
                               b = numbers.many(n);
      double mean = 0, variance = 0;
      for (const float v : x) mean += double(v) / double(n);
      for (const float v : x) variance += std::pow(double(v) - mean, 2) / double(n);
      float m;
      double v = 0;
      k.moments(x.data(), n, &m, &v);
      // The mean is rounded at 100; the variance contains the square of that rounding.
      CHECK(std::abs(double(m) - mean) <= (2 + std::sqrt(double(n))) * eps * 100);
      CHECK(std::abs(double(v) - variance) <= (2 + std::sqrt(double(n))) * eps * (variance + 1));
      std::vector<float> y(x.size());
      k.normalize(x.data(), 100, 0.5f, w.data(), b.data(), y.data(), n);
      const auto truth = [&](std::size_t i) {
        return (double(x[i]) - 100) * 0.5 * double(w[i]) + double(b[i]);
      };
      CHECK(first_beyond(y, truth, [](std::size_t) { return 4 * eps * 3; }) == "");
      k.normalize(x.data(), 100, 0.5f, nullptr, nullptr, y.data(), n);
      CHECK(first_beyond(
                y, [&](std::size_t i) { return (double(x[i]) - 100) * 0.5; },
                [](std::size_t) { return eps; }) == "");
    }
  });
}

// --- images

TEST_CASE("the maximum of pixels keeps the position of the first, and NaN wins") {
  const float nan = std::nanf("");
  const std::vector<float> a{1, 5, 2, nan, 0}, b{3, 5, 1, 7, nan}, c{2, 6, 2, nan, 9};
  const float* const pixels[] = {a.data(), b.data(), c.data()};
  const uint8_t places[] = {0, 4, 8};
  each_level([&](const simd::Kernels& k) {
    std::vector<float> y(5), dx(5);
    std::vector<uint8_t> argmax(5);
    k.max_of_pixels(pixels, places, 3, 5, y.data(), argmax.data());
    CHECK(std::vector<float>(y.begin(), y.begin() + 3) == std::vector<float>{3, 6, 2});
    CHECK(std::isnan(y[3]));
    CHECK(std::isnan(y[4]));
    CHECK(argmax == std::vector<uint8_t>{4, 8, 0, 0, 4});
    const std::vector<float> dy{1, 2, 3, 4, 5};
    k.select_place(dy.data(), argmax.data(), 4, 5, dx.data());
    CHECK(dx == std::vector<float>{1, 0, 0, 0, 5});
  });
}

TEST_CASE("transposition of any size, inside larger matrices") {
  Numbers numbers(27);
  const std::vector<float> x = numbers.many(50 * 60);
  each_level([&](const simd::Kernels& k) {
    for (const int64_t rows : {1, 15, 16, 33})
      for (const int64_t columns : {1, 16, 17, 40}) {
        std::vector<float> y(60 * 50, -1.0f);
        k.transpose(x.data(), 60, y.data(), 50, rows, columns);
        bool right = true;
        for (int64_t j = 0; j < 60; ++j)
          for (int64_t i = 0; i < 50; ++i) {
            const bool inside = i < rows && j < columns;
            right = right &&
                    y[std::size_t(j * 50 + i)] == (inside ? x[std::size_t(i * 60 + j)] : -1.0f);
          }
        CHECK_MESSAGE(right, rows, " x ", columns);
        std::vector<uint16_t> shorts(50 * 60);
        std::iota(shorts.begin(), shorts.end(), uint16_t(0));
        std::vector<uint16_t> turned(60 * 50, 0xffff);
        k.transpose_shorts(shorts.data(), 60, turned.data(), 50, rows, columns);
        for (int64_t j = 0; j < columns; ++j)
          for (int64_t i = 0; i < rows; ++i)
            right = right && turned[std::size_t(j * 50 + i)] == shorts[std::size_t(i * 60 + j)];
        CHECK_MESSAGE(right, rows, " x ", columns, " short floats");
        CHECK(std::count(turned.begin(), turned.end(), 0xffff) == 60 * 50 - rows * columns);
      }
  });
}

}  // namespace
}  // namespace halftone::test::simd_reductions_test
