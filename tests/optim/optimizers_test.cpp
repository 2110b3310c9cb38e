// Sgd, Adam, AdamW, Rmsprop against plain f64 loops over PyTorch's published formulas, their option
// checks, and parameters that change their dtype or lack gradients.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>

#include <halftone/core/factory.h>
#include <halftone/optim/optim.h>

namespace halftone::test::optimizers_test {

using namespace halftone::optim;

namespace {

using Values = std::vector<double>;

/// A rule updates one number: step t = 1, 2, ..., gradient g; it stores its own state.
using Rule = std::function<double(int t, double p, double g)>;

Tensor leaf(const Values& values, DType dtype = f32) {
  return from_vector(values, {int64_t(values.size())}, dtype).set_requires_grad();
}

double gradient_at(int t, std::size_t i) { return std::sin(1.7 * t + double(i)) + 0.1 * double(i); }

/// Runs `steps` steps on three numbers and compares with the rule, made again for each number.
void compare(Optimizer& optimizer, const Tensor& parameter, const std::function<Rule()>& make_rule,
             int steps = 6) {
  Values expected = parameter.to_vector<double>();
  std::vector<Rule> rules;
  for (std::size_t i = 0; i < expected.size(); ++i) rules.push_back(make_rule());
  Tensor handle = parameter;
  for (int t = 1; t <= steps; ++t) {
    Values gradient(expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) gradient[i] = gradient_at(t, i);
    handle.set_grad(from_vector(gradient, parameter.shape(), parameter.dtype()));
    optimizer.step();
    for (std::size_t i = 0; i < expected.size(); ++i)
      expected[i] = rules[i](t, expected[i], gradient[i]);
  }
  const Values got = parameter.to_vector<double>();
  const double tolerance = 64 * epsilon(parameter.dtype());
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(std::abs(got[i] - expected[i]) <= tolerance);
}

Rule sgd_rule(SgdOptions o) {
  return [o, buffer = 0.0](int t, double p, double g) mutable {
    g += o.weight_decay * p;
    if (o.momentum != 0) {
      buffer = t == 1 ? g : o.momentum * buffer + (1 - o.dampening) * g;
      g = o.nesterov ? g + o.momentum * buffer : buffer;
    }
    return p - o.lr * g;
  };
}

template <class Options> Rule adam_rule(Options o, bool decoupled) {
  return [o, decoupled, m = 0.0, v = 0.0](int t, double p, double g) mutable {
    if (decoupled) p *= 1 - o.lr * o.weight_decay;
    else g += o.weight_decay * p;
    m = o.betas[0] * m + (1 - o.betas[0]) * g;
    v = o.betas[1] * v + (1 - o.betas[1]) * g * g;
    const double correction1 = 1 - std::pow(o.betas[0], t),
                 correction2 = 1 - std::pow(o.betas[1], t);
    return p - o.lr / correction1 * m / (std::sqrt(v) / std::sqrt(correction2) + o.eps);
  };
}

Rule rmsprop_rule(RmspropOptions o) {
  return [o, square = 0.0, average = 0.0, buffer = 0.0](int, double p, double g) mutable {
    g += o.weight_decay * p;
    square = o.alpha * square + (1 - o.alpha) * g * g;
    average = o.alpha * average + (1 - o.alpha) * g;
    const double variance = o.centered ? square - average * average : square;
    double update = g / (std::sqrt(variance) + o.eps);
    if (o.momentum > 0) update = buffer = o.momentum * buffer + update;
    return p - o.lr * update;
  };
}

const Values start{1, -0.5, 2};

}  // namespace

TEST_CASE("Sgd follows its formula") {
  for (const DType dtype : {f32, f64}) {
    for (const SgdOptions& o :
         {SgdOptions{.lr = 0.1}, SgdOptions{.lr = 0.1, .weight_decay = 0.2},
          SgdOptions{.lr = 0.1, .momentum = 0.9},
          SgdOptions{.lr = 0.05, .momentum = 0.8, .dampening = 0.3, .weight_decay = 0.1},
          SgdOptions{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true}}) {
      const Tensor p = leaf(start, dtype);
      Sgd optimizer({p}, o);
      compare(optimizer, p, [&] { return sgd_rule(o); });
    }
  }
}

TEST_CASE("Adam and AdamW follow their formulas") {
  for (const DType dtype : {f32, f64}) {
    for (const double decay : {0.0, 0.1}) {
      const AdamOptions o{.lr = 0.05, .betas = {0.8, 0.95}, .weight_decay = decay};
      const Tensor p = leaf(start, dtype);
      Adam adam({p}, o);
      compare(adam, p, [&] { return adam_rule(o, false); });
    }
    const Tensor p = leaf(start, dtype);
    AdamW adamw({p});
    compare(adamw, p, [&] { return adam_rule(AdamWOptions{}, true); });
  }
  CHECK(AdamWOptions{}.weight_decay == 0.01);
  CHECK(AdamOptions{}.weight_decay == 0);
}

TEST_CASE("Rmsprop follows its formula") {
  for (const DType dtype : {f32, f64}) {
    for (const RmspropOptions& o :
         {RmspropOptions{}, RmspropOptions{.lr = 0.02, .alpha = 0.9, .weight_decay = 0.1},
          RmspropOptions{.momentum = 0.9}, RmspropOptions{.momentum = 0.5, .centered = true},
          RmspropOptions{.centered = true}}) {
      const Tensor p = leaf(start, dtype);
      Rmsprop optimizer({p}, o);
      compare(optimizer, p, [&] { return rmsprop_rule(o); });
    }
  }
}

TEST_CASE("a first AdamW step moves by the learning rate, computed by hand") {
  Tensor p = leaf({1});
  p.set_grad(from({0.5}));
  AdamW({p}, {.lr = 0.1}).step();  // 1 * (1 - 0.1 * 0.01) - 0.1 * 0.5 / (0.5 + 1e-8)
  CHECK(p.item() == doctest::Approx(0.899));
}

TEST_CASE("parameters without gradients are skipped and keep their own step count") {
  Tensor a = leaf({1}), b = leaf({1});
  Adam optimizer({a, b}, {.lr = 0.1});
  a.set_grad(from({1.0}));
  optimizer.step();
  CHECK(a.item() == doctest::Approx(0.9));
  CHECK(b.item() == 1);
  b.set_grad(from({1.0}));
  optimizer.step();
  CHECK(a.item() == doctest::Approx(0.8));
  CHECK(b.item() == doctest::Approx(0.9));  // its first step, with the correction of a first step
  const NamedTensors state = optimizer.state_dict();
  CHECK(state.at("state.0.step").item() == 2);
  CHECK(state.at("state.1.step").item() == 1);

  Tensor c = leaf({1}), d = leaf({1});
  Sgd momentum({c, d}, {.lr = 1, .momentum = 0.5, .dampening = 0.5});
  c.set_grad(from({1.0}));
  momentum.step();
  d.set_grad(from({1.0}));
  momentum.step();
  CHECK(c.item() == 1 - 1 - (0.5 + 0.5));
  CHECK(d.item() == 0);
}

TEST_CASE("a step without any gradient does nothing") {
  Tensor p = leaf({1});
  AdamW optimizer({p});
  optimizer.step();
  CHECK(p.item() == 1);
  CHECK(optimizer.gradients().empty());
  CHECK(optimizer.state_dict().count("state.0.step") == 0);
}

TEST_CASE("low-precision parameters are updated in f32, with f32 state unless told otherwise") {
  Tensor p = leaf({1}, bf16), q = leaf({1}, bf16);
  p.set_grad(from({1e-4}, bf16)), q.set_grad(from({1e-4}, bf16));
  Adam wide({p}, {.lr = 0.25, .eps = 1e-12});
  Adam narrow({q}, {.lr = 0.25, .eps = 1e-12, .state_dtype = bf16});
  wide.step(), narrow.step();
  CHECK(p.item() == 0.75);  // m / sqrt(v) is 1 although v is 1e-11
  CHECK(q.item() == doctest::Approx(0.75).epsilon(0.01));
  CHECK(wide.state_dict().at("state.0.exp_avg_sq").dtype() == f32);
  CHECK(narrow.state_dict().at("state.0.exp_avg_sq").dtype() == bf16);
  CHECK(p.dtype() == bf16);
}

TEST_CASE("a step bumps the version of the tensors it wrote") {
  Tensor p = leaf({1}), frozen = leaf({1});
  Sgd optimizer({p, frozen}, {.lr = 1});
  const uint64_t before = p.storage()->version(), other = frozen.storage()->version();
  p.set_grad(from({1.0}));
  optimizer.step();
  CHECK(p.storage()->version() > before);
  CHECK(frozen.storage()->version() == other);
}

TEST_CASE("option errors name the option and its value") {
  const std::vector<Tensor> p{leaf({1})};
  CHECK_THROWS_WITH_AS(Sgd(p, {.lr = -1}), "[Sgd] lr is -1. Use 0 or more.", UsageError);
  CHECK_THROWS_WITH_AS(Sgd(p, {.lr = std::nan("")}), "[Sgd] lr is nan. Use 0 or more.", UsageError);
  CHECK_THROWS_WITH_AS(Sgd(p, {.momentum = -0.5}), "[Sgd] momentum is -0.5. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Sgd(p, {.weight_decay = -0.1}), "[Sgd] weight_decay is -0.1. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Sgd(p, {.nesterov = true}),
                       "[Sgd] nesterov with momentum 0 and dampening 0. It needs a positive "
                       "momentum and no dampening.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Adam(p, {.betas = {1, 0.9}}), "[Adam] beta1 is 1. Use 0 or more, below 1.",
                       UsageError);
  CHECK_THROWS_WITH_AS(AdamW(p, {.betas = {0.9, -0.1}}),
                       "[AdamW] beta2 is -0.1. Use 0 or more, below 1.", UsageError);
  CHECK_THROWS_WITH_AS(AdamW(p, {.eps = -1e-8}), "[AdamW] eps is -1e-08. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(AdamW(p, {.weight_decay = -1}), "[AdamW] weight_decay is -1. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Rmsprop(p, {.alpha = -1}), "[Rmsprop] alpha is -1. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Adam(p, {.state_dtype = i64}),
                       "[Adam] state_dtype is i64. Use f32, bf16 or f16.", DTypeError);
}

TEST_CASE("parameter errors") {
  const Tensor p = leaf({1});
  CHECK_THROWS_WITH_AS(
      AdamW(std::vector<Tensor>{}),
      "[AdamW] got an empty parameter list. Pass model.parameters() of a model that has some.",
      UsageError);
  CHECK_THROWS_WITH_AS(
      Sgd(std::vector<ParameterGroup<SgdOptions>>{}),
      "[Sgd] got no parameter groups. Pass model.parameters() of a model that has some.",
      UsageError);
  CHECK_THROWS_WITH_AS(Sgd({p, Tensor{}}), "[Sgd] parameter 1 is undefined. Leave it out.",
                       UsageError);
  CHECK_THROWS_WITH_AS(Sgd({p, zeros({2}, i64)}),
                       "[Sgd] parameter 1 is [2] i64. Only floating tensors can be trained.",
                       DTypeError);
  CHECK_THROWS_WITH_AS(Sgd({p, p}),
                       "[Sgd] parameter 1, [1] f32, appears twice. Name each parameter once.",
                       UsageError);
}

}  // namespace halftone::test::optimizers_test
