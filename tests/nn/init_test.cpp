// Initializers: ranges and moments of the formulas of torch.nn.init, reproducibility, and error
// messages.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <halftone/core/factory.h>
#include <halftone/core/random.h>
#include <halftone/nn/init.h>

namespace halftone::test::init_test {
namespace init = halftone::nn::init;

namespace {

struct Moments {
  double mean = 0, std = 0, low = 0, high = 0;
};

Moments moments_of(const Tensor& x) {
  const std::vector<double> values = x.to_vector<double>();
  Moments m;
  for (const double value : values) m.mean += value / double(values.size());
  for (const double value : values)
    m.std += (value - m.mean) * (value - m.mean) / double(values.size());
  m.std = std::sqrt(m.std);
  m.low = *std::min_element(values.begin(), values.end());
  m.high = *std::max_element(values.begin(), values.end());
  return m;
}

void check_uniform(const Tensor& x, double low, double high) {
  const Moments m = moments_of(x);
  const double width = high - low;
  CHECK(m.low >= low);
  CHECK(m.high <= high);
  CHECK(m.low < low + 0.01 * width);
  CHECK(m.high > high - 0.01 * width);
  CHECK(std::abs(m.mean - 0.5 * (low + high)) < 0.02 * width);
  CHECK(m.std == doctest::Approx(width / std::sqrt(12.0)).epsilon(0.03));
}

void check_normal(const Tensor& x, double mean, double std) {
  const Moments m = moments_of(x);
  CHECK(std::abs(m.mean - mean) < 0.05 * std);
  CHECK(m.std == doctest::Approx(std).epsilon(0.03));
  CHECK(m.high > mean + 2.5 * std);
}

}  // namespace

TEST_CASE("constants") {
  CHECK(init::ones(empty({2})).to_vector<double>() == std::vector<double>{1, 1});
  CHECK(init::zeros(ones({2})).to_vector<double>() == std::vector<double>{0, 0});
  CHECK(init::constant(empty({2}, bf16), 0.5).to_vector<double>() == std::vector<double>{0.5, 0.5});
}

TEST_CASE("uniform and normal, in every floating dtype") {
  manual_seed(11);
  for (const DType dtype : {f64, f32, f16, bf16}) {
    check_uniform(init::uniform(empty({100, 100}, dtype), -2, 1), -2, 1);
    check_normal(init::normal(empty({100, 100}, dtype), 3, 0.5), 3, 0.5);
  }
}

TEST_CASE("fans and gains") {
  CHECK(init::fans_of(empty({6, 5})).in == 5);
  CHECK(init::fans_of(empty({6, 5})).out == 6);
  CHECK(init::fans_of(empty({8, 4, 3, 2})).in == 24);
  CHECK(init::fans_of(empty({8, 4, 3, 2})).out == 48);
  using enum init::Nonlinearity;
  CHECK(init::gain_of(linear) == 1);
  CHECK(init::gain_of(sigmoid) == 1);
  CHECK(init::gain_of(init::Nonlinearity::tanh) == doctest::Approx(5.0 / 3));
  CHECK(init::gain_of(relu) == doctest::Approx(std::sqrt(2.0)));
  CHECK(init::gain_of(leaky_relu) == doctest::Approx(std::sqrt(2 / 1.0001)));
  CHECK(init::gain_of(leaky_relu, 1) == doctest::Approx(1));
  CHECK(init::gain_of(selu) == 0.75);
}

TEST_CASE("xavier and kaiming") {
  manual_seed(12);
  const auto weight = [] { return empty({60, 20, 3, 3}); };  // fan in 180, fan out 540
  const double bound = std::sqrt(6.0 / 720);
  check_uniform(init::xavier_uniform(weight(), 2), -2 * bound, 2 * bound);
  check_normal(init::xavier_normal(weight()), 0, std::sqrt(2.0 / 720));
  check_uniform(init::kaiming_uniform(weight()), -std::sqrt(6.0 / 180), std::sqrt(6.0 / 180));
  check_uniform(init::kaiming_uniform(weight(), {.slope = std::sqrt(5.0)}), -std::sqrt(1.0 / 180),
                std::sqrt(1.0 / 180));
  check_normal(init::kaiming_normal(
                   weight(), {.fan = init::Fan::out, .nonlinearity = init::Nonlinearity::relu}),
               0, std::sqrt(2.0 / 540));
}

TEST_CASE("truncated normal") {
  manual_seed(13);
  const Moments m = moments_of(init::trunc_normal(empty({20000})));
  CHECK(m.low >= -2);
  CHECK(m.high <= 2);
  CHECK(m.low < -1.95);
  CHECK(std::abs(m.mean) < 0.02);
  CHECK(m.std == doctest::Approx(0.8796).epsilon(0.02));  // of N(0, 1) cut at +-2
  const Moments shifted = moments_of(init::trunc_normal(empty({20000}), 1, 0.02, -2, 2));
  CHECK(shifted.mean == doctest::Approx(1).epsilon(0.001));
  CHECK(shifted.std == doctest::Approx(0.02).epsilon(0.03));
}

TEST_CASE("orthogonal") {
  for (const Shape& shape : {Shape{4, 4}, Shape{3, 7}, Shape{6, 2, 2}}) {
    const std::vector<double> q = init::orthogonal(empty(shape, f64), 2).to_vector<double>();
    const int64_t rows = shape[0], columns = int64_t(q.size()) / rows;
    const bool wide = rows <= columns;
    for (int64_t a = 0; a < std::min(rows, columns); ++a) {
      for (int64_t b = 0; b < std::min(rows, columns); ++b) {
        double dot = 0;
        for (int64_t i = 0; i < std::max(rows, columns); ++i)
          dot += wide ? q[std::size_t(a * columns + i)] * q[std::size_t(b * columns + i)]
                      : q[std::size_t(i * columns + a)] * q[std::size_t(i * columns + b)];
        CHECK(std::abs(dot - (a == b ? 4 : 0)) < 1e-12);
      }
    }
  }
}

TEST_CASE("initializers repeat with the seed, bump the version, and write through views") {
  manual_seed(5);
  const std::vector<double> first = init::normal(empty({9})).to_vector<double>();
  CHECK(init::normal(empty({9})).to_vector<double>() != first);
  manual_seed(5);
  CHECK(init::normal(empty({9})).to_vector<double>() == first);

  Tensor x = zeros({3, 2});
  const uint64_t version = x.storage()->version();
  init::uniform(x.view_as({3}, {2}, 1), 1, 2);  // the second column
  CHECK(x.storage()->version() > version);
  for (const int64_t row : {0, 1, 2}) {
    CHECK(x.at({row, 0}) == 0);
    CHECK(x.at({row, 1}) >= 1);
  }
  CHECK(init::normal(empty({0, 3})).numel() == 0);
}

TEST_CASE("initializers' errors") {
  CHECK_THROWS_WITH_AS(init::uniform(empty({2}), 1, 0),
                       "[init.uniform] low 1 is above high 0. Swap them.", UsageError);
  CHECK_THROWS_WITH_AS(init::normal(empty({2}), 0, -1),
                       "[init.normal] std -1 is negative. Use 0 or more.", UsageError);
  CHECK_THROWS_WITH_AS(init::trunc_normal(empty({2}), 0, 0),
                       "[init.trunc_normal] std 0 is not positive. Use more than 0.", UsageError);
  CHECK_THROWS_WITH_AS(init::trunc_normal(empty({2}), 0, 1, 2, -2),
                       "[init.trunc_normal] low 2 is above high -2. Swap them.", UsageError);
  CHECK_THROWS_WITH_AS(
      init::kaiming_normal(empty({2})),
      "[init] fans need a weight [out, in, ...], got [2] f32. Use uniform or normal for vectors.",
      ShapeError);
  CHECK_THROWS_WITH_AS(
      init::orthogonal(empty({2})),
      "[init.orthogonal] needs a matrix or more, got [2] f32. Use normal for vectors.", ShapeError);
}

}  // namespace halftone::test::init_test
