// E3. Minimizes 200 parabolas (w - target)^2 / 2 of curvature L = 1, with targets uniform in
// +-[0.5, 2], by gradient descent from 0 without noise, until nothing moves.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/setting.h>
#include <halftone/lab/table.h>

namespace halftone::lab {
namespace e03 {

constexpr int64_t count = 200;
constexpr double rates[]{0.25, 0.1, 0.05, 0.025, 0.0125};

Tensor targets() {
  manual_seed(3);
  const std::vector<double> u = rand({2 * count}).to_vector<double>();
  std::vector<double> values;
  for (std::size_t i = 0; i < std::size_t(count); ++i)
    values.push_back((u[2 * i + 1] < 0.5 ? -1 : 1) * (0.5 + 1.5 * u[2 * i]));
  return from_vector(values, {count});
}

/// Returns the rms of the errors over the second half of the steps.
double rms_error(const amp::Strategy& policy, double rate) {
  Weights model(zeros({count}));
  optim::Sgd sgd(model.parameters(), {.lr = rate});
  amp::Training training(policy, model, sgd);
  const Tensor wanted = targets();
  const auto steps = int64_t(16 / rate);
  std::vector<double> errors;
  for (int64_t step = 0; step < steps; ++step) {
    const NoGrad no_grad;
    const Tensor error = model.w - wanted;  // the gradient
    model.w.set_grad(error);
    training.step();
    if (2 * step < steps) continue;
    for (const double e : error.to_vector<double>()) errors.push_back(e);
  }
  return root_mean_square(errors);
}

/// Returns the same for weights rounded to nearest, computed in f64 without any rounding: a weight
/// moves up number by number until its update is at most half a spacing.
double expected_floor(double rate) {
  std::vector<double> errors;
  for (const double target : targets().to_vector<double>()) {
    double w = 0.25, spacing = 0x1p-9;  // below 0.25 everything moves
    while (rate * (std::abs(target) - w) > spacing / 2) {
      w += spacing;
      if (w == 0.5 || w == 1) spacing *= 2;
    }
    errors.push_back(std::abs(target) - w);
  }
  return root_mean_square(errors);
}

/// Returns the slope of a line through (log2 rate, log2 error).
double slope(std::span<const double> errors) {
  double x = 0, y = 0, xx = 0, xy = 0;
  const auto n = double(errors.size());
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const double a = std::log2(rates[i]), b = std::log2(errors[i]);
    x += a / n, y += b / n, xx += a * a / n, xy += a * b / n;
  }
  return (xy - x * y) / (xx - x * x);
}

void run(Findings& found) {
  const amp::Strategy exact = policy_of("f32", "fp32", ""),
                      nearest = policy_of("nearest", "fp32", R"("optimizer":
                        {"parameters": "bf16"})"),
                      stochastic = policy_of("stochastic", "fp32", R"("optimizer":
                        {"parameters": {"format": "bf16", "rounding": "stochastic"}})");
  Table table({"rate x L", "f32", "bf16 nearest", "x rate x L", "expected", "bf16 stochastic"});
  std::vector<double> floors, noises, exacts, expected;
  for (const double rate : rates) {
    exacts.push_back(rms_error(exact, rate)), floors.push_back(rms_error(nearest, rate)),
        noises.push_back(rms_error(stochastic, rate)), expected.push_back(expected_floor(rate));
    table.row({number(rate), number(exacts.back(), 2), number(floors.back(), 3),
               fixed(floors.back() * rate, 5), number(expected.back(), 3),
               number(noises.back(), 3)});
  }
  found.out() << "root mean square of w - target:\n" << table;
  // Half a spacing is 2^-9 for |w| from 1/2 to 1, 2^-8 from 1 to 2. So error x rate x L is near
  // 0.0034 for these targets, and less where a weight overshoots in the last step. Published:
  // 0.0025 to 0.0031, from 200 other targets; the choice of targets changes it by 10 % (log-uniform
  // ones: 0.0024 to 0.0029). So the published range is the wide bar here, and the floor computed
  // for these targets is the strict one.
  for (std::size_t i = 0; i < floors.size(); ++i) {
    const std::string what = "nearest, rate " + number(rates[i]) + ", error ";
    found.within(what + "x rate x L", floors[i] * rates[i], 0.0025 * 0.9, 0.0031 * 1.1);
    found.within(what + "over expected", floors[i] / expected[i], 0.98, 1.02);
  }
  found.within("nearest, slope of log error over log rate", slope(floors), -1.15, -0.85);
  found.at_most("f32, largest error", *std::ranges::max_element(exacts), 1e-3);
  // Without noise in the gradients, the error of stochastic rounding does not fall with the rate.
  // At spacing s, a step of rate * e errs with the variance rate * |e| * s. This is stationary if 2
  // rate sigma^2 = rate s E|e|, so sigma = 0.4 s at every rate; s is 2^-8 and 2^-7.
  const double predicted = 0.4 * std::sqrt((0x1p-16 + 2 * 0x1p-14) / 3);
  found.within("stochastic, largest error over 0.4 of a spacing",
               *std::ranges::max_element(noises) / predicted, 0.8, 1.25);
  found.within("stochastic, slope of log error over log rate", slope(noises), -0.15, 0.15);
}

}  // namespace e03

const Experiment found::e3{
    "E3",
    "With weights rounded to nearest the error at which training stops grows as the learning rate "
    "shrinks: half a spacing over the rate (Zamirai et al. 2020, theorem 1).",
    e03::run};

}  // namespace halftone::lab
