// Initial values against PyTorch's. The two generators differ, so the test compares moments and
// extremes of two samples of the same size; the tolerances are those of sampling.
#include <algorithm>

#include <halftone/core/random.h>
#include <halftone/nn/nn.h>

#include "fixture.h"

namespace halftone::test::initializers_test {
namespace init = halftone::nn::init;

namespace {

struct Moments {
  double mean, std, low, high;
};

Moments moments_of(const Tensor& x) {
  const std::vector<double> values = x.to_vector<double>();
  double sum = 0, squares = 0;
  for (const double value : values) sum += value, squares += value * value;
  const double count = double(values.size()), mean = sum / count;
  const auto [low, high] = std::ranges::minmax(values);
  return {mean, std::sqrt(squares / count - mean * mean), low, high};
}

enum class Extremes { bounded, open };

/// Two independent samples of n numbers: means differ by std sqrt(2 / n), standard deviations by at
/// most std / sqrt(n), each times 5 for a chance of one in a million. Extremes of a bounded sample
/// are within 20 / n of the range of its bounds, except once in e^20.
void compare(const std::map<std::string, NamedTensors>& cases, const std::string& name,
             const Tensor& x, Extremes extremes) {
  CAPTURE(name);
  const std::vector<double> want = cases.at(name).at("moments").to_vector<double>();
  const Moments got = moments_of(x);
  const double root = std::sqrt(double(x.numel()));
  CHECK(std::abs(got.mean - want[0]) <= 5 * std::sqrt(2.0) * want[1] / root);
  CHECK(std::abs(got.std - want[1]) <= 5 * want[1] / root);
  if (extremes == Extremes::open) return;
  const double slack = (want[3] - want[2]) * 20 / double(x.numel());
  CHECK(std::abs(got.low - want[2]) <= slack);
  CHECK(std::abs(got.high - want[3]) <= slack);
}

}  // namespace

TEST_CASE("pytorch: initial values of layers") {
  manual_seed(3);
  const auto cases = load_cases("init");
  const auto layer = [&](const std::string& name, const auto& made) {
    compare(cases, name + "_weight", made.weight, Extremes::bounded);
    compare(cases, name + "_bias", made.bias, Extremes::bounded);
  };
  layer("linear", nn::Linear(300, 200));
  layer("conv2d", nn::Conv2d(32, 64, {3, 5}));
  layer("conv2d_groups", nn::Conv2d(64, 512, 3, {.groups = 8}));
  layer("conv1d", nn::Conv1d(48, 96, 5));
  layer("conv_transpose2d", nn::ConvTranspose2d(48, 64, 3));
  layer("conv_transpose2d_groups", nn::ConvTranspose2d(64, 256, 3, {.groups = 4}));
  compare(cases, "embedding_weight", nn::Embedding(400, 64).weight, Extremes::open);
}

TEST_CASE("pytorch: initializers") {
  manual_seed(4);
  const auto cases = load_cases("init");
  const std::pair<std::string, Tensor> weights[]{{"matrix", empty({300, 200})},
                                                 {"kernel", empty({64, 32, 3, 5})}};
  using init::Fan, init::Nonlinearity;
  for (const auto& [name, x] : weights) {
    compare(cases, "xavier_uniform_" + name, init::xavier_uniform(x, 1.5), Extremes::bounded);
    compare(cases, "xavier_normal_" + name, init::xavier_normal(x, 1.5), Extremes::open);
    compare(cases, "kaiming_uniform_" + name, init::kaiming_uniform(x, {.slope = 0.2}),
            Extremes::bounded);
    compare(cases, "kaiming_uniform_fan_out_" + name,
            init::kaiming_uniform(x, {.fan = Fan::out, .nonlinearity = Nonlinearity::relu}),
            Extremes::bounded);
    compare(cases, "kaiming_normal_" + name,
            init::kaiming_normal(x, {.nonlinearity = Nonlinearity::tanh}), Extremes::open);
    compare(cases, "orthogonal_" + name, init::orthogonal(x, 2), Extremes::open);
  }
  compare(cases, "trunc_normal", init::trunc_normal(weights[0].second, 0.5, 2, -1, 3),
          Extremes::bounded);

  const std::vector<double> gains = cases.at("gains").at("values").to_vector<double>();
  REQUIRE(gains.size() == 6);
  for (int i = 0; i < 6; ++i)
    CHECK(init::gain_of(Nonlinearity(i)) == doctest::Approx(gains[std::size_t(i)]));
}

}  // namespace halftone::test::initializers_test
