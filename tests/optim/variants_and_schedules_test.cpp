// AMSGrad, maximize, schedules, plateaus and p-norms, each compared with PyTorch's formula in f64
// or its published numbers.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include <halftone/amp/amp.h>
#include <halftone/autograd/ops.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optim.h>

#include "../support.h"

namespace halftone::test::variants_and_schedules_test {

using optim::LrSchedule;

namespace {

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

TEST_CASE("AMSGrad and maximize, by their formulas in f64") {
  const std::vector<double> start{1, -2, 0.5};
  for (const bool amsgrad : {false, true})
    for (const bool maximize : {false, true})
      for (const bool decoupled : {false, true}) {
        CAPTURE(amsgrad);
        CAPTURE(maximize);
        CAPTURE(decoupled);
        Tensor p = from_vector(start, {3}, f64).set_requires_grad();
        optim::Adam adam(
            {p}, {.lr = 0.1, .weight_decay = 0.02, .amsgrad = amsgrad, .maximize = maximize});
        Tensor q = from_vector(start, {3}, f64).set_requires_grad();
        optim::AdamW adamw(
            {q}, {.lr = 0.1, .weight_decay = 0.02, .amsgrad = amsgrad, .maximize = maximize});
        Tensor& x = decoupled ? q : p;
        std::vector<double> w = start, m(3), v(3), most(3);
        for (int t = 1; t <= 6; ++t) {
          std::vector<double> g(3);
          for (std::size_t i = 0; i < 3; ++i) g[i] = (t % 2 ? 1.0 : 0.1) * (w[i] + double(i));
          x.set_grad(from_vector(g, {3}, f64));
          if (decoupled) adamw.step();
          else adam.step();
          for (std::size_t i = 0; i < 3; ++i) {
            double gradient = maximize ? -g[i] : g[i];
            if (decoupled) w[i] *= 1 - 0.1 * 0.02;
            else gradient += 0.02 * w[i];
            m[i] = 0.9 * m[i] + 0.1 * gradient;
            v[i] = 0.999 * v[i] + 0.001 * gradient * gradient;
            most[i] = std::max(most[i], v[i]);
            const double root = std::sqrt((amsgrad ? most[i] : v[i]) / (1 - std::pow(0.999, t)));
            w[i] -= 0.1 / (1 - std::pow(0.9, t)) * m[i] / (root + 1e-8);
          }
        }
        for (std::size_t i = 0; i < 3; ++i)
          CHECK(values(x)[i] == doctest::Approx(w[i]).epsilon(1e-12));
      }
}

TEST_CASE("AMSGrad: under masters and split weights, saved and resumed") {
  for (const char* name : {"fp32", "o2-bf16", "split-bf16", "full-bf16-kahan", "amp-fp16"}) {
    CAPTURE(name);
    const auto train = [&](int steps, const optim::NamedTensors* from, optim::NamedTensors* to) {
      manual_seed(5);
      nn::Linear layer(4, 3);
      optim::AdamW adamw(layer.parameters(), {.lr = 0.05, .amsgrad = true});
      auto training = amp::apply(amp::Strategy::named(name), layer, adamw);
      if (from) training.load_state_dict(*from);
      for (int i = 0; i < steps; ++i) {
        training.zero_grad();
        training.backward(mean(square(training.forward(layer, ones({2, 4})) - 1.0)));
        training.step();
      }
      to->clear();
      for (const auto& [key, x] : training.state_dict()) (*to)[key] = x.clone();
    };
    optim::NamedTensors whole, half, rest;
    train(6, nullptr, &whole), train(3, nullptr, &half), train(3, &half, &rest);
    REQUIRE(whole.contains("optimizer.state.0.max_exp_avg_sq"));
    for (const auto& [key, x] : whole) {
      CAPTURE(key);
      CHECK(values(x) == values(rest.at(key)));
    }
  }
}

TEST_CASE("maximize: SGD and RMSprop go in the opposite direction, also under a loss scale") {
  for (const bool scaled : {false, true}) {
    Tensor up = from({1.0, 2}).set_requires_grad(), down = from({1.0, 2}).set_requires_grad();
    optim::Sgd rises({up}, {.lr = 0.5, .momentum = 0.9, .maximize = true});
    optim::Sgd falls({down}, {.lr = 0.5, .momentum = 0.9});
    for (int i = 0; i < 3; ++i) {
      up.set_grad(from({-2.0, 1})), down.set_grad(from({2.0, -1}));
      if (scaled) rises.step({.factor = scalar(0.5)}), falls.step({.factor = scalar(0.5)});
      else rises.step(), falls.step();
    }
    CHECK(values(up) == values(down));
  }
  Tensor p = from({1.0}).set_requires_grad();
  optim::Rmsprop rmsprop({p}, {.lr = 0.1, .maximize = true});
  p.set_grad(from({3.0}));
  rmsprop.step();
  CHECK(values(p)[0] > 1);
}

TEST_CASE("schedules are torch's") {
  const LrSchedule steps = LrSchedule::multi_step({2, 5}, 0.1);
  CHECK(steps.at(1) == 1);
  CHECK(steps.at(2) == doctest::Approx(0.1));
  CHECK(steps.at(5) == doctest::Approx(0.01));
  CHECK(LrSchedule::exponential(0.9).at(3) == doctest::Approx(0.729));
  CHECK(LrSchedule::polynomial(10, 2).at(5) == doctest::Approx(0.25));
  CHECK(LrSchedule::polynomial(10).at(12) == 0);
  // torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(T_0=4, T_mult=2, eta_min=0.1), lr 1
  const LrSchedule restarts = LrSchedule::cosine_restarts(4, 2, 0.1);
  const std::vector<double> expected{1.0,
                                     0.8681980515339464,
                                     0.55,
                                     0.23180194846605364,
                                     1.0,
                                     0.9657457896300791,
                                     0.8681980515339464};
  for (std::size_t i = 0; i < expected.size(); ++i)
    CHECK(restarts.at(int64_t(i)) == doctest::Approx(expected[i]).epsilon(1e-12));
  CHECK(restarts.at(12) == doctest::Approx(1));
  // torch.optim.lr_scheduler.OneCycleLR(max_lr=1, total_steps=10)
  const LrSchedule cycle = LrSchedule::one_cycle(10);
  const std::vector<double> one_cycle{0.04,
                                      0.52,
                                      1.0,
                                      0.9504846320134736,
                                      0.8117456539497631,
                                      0.6112620219362892,
                                      0.38874197806371076,
                                      0.18825834605023694,
                                      0.04951936798652633,
                                      4e-06};
  for (std::size_t i = 0; i < one_cycle.size(); ++i)
    CHECK(cycle.at(int64_t(i)) == doctest::Approx(one_cycle[i]).epsilon(1e-9));
  CHECK_THROWS_AS(LrSchedule::one_cycle(0), UsageError);
  CHECK_THROWS_AS(LrSchedule::one_cycle(10, 1.5), UsageError);
  CHECK_THROWS_AS(LrSchedule::one_cycle(10, 0.3, 0), UsageError);
  CHECK_THROWS_AS(LrSchedule::cosine_restarts(0), UsageError);
  CHECK_THROWS_AS(LrSchedule::multi_step({-1}), UsageError);
}

TEST_CASE("ReduceOnPlateau: patience, cooldown, threshold, least rate") {
  Tensor p = from({1.0}).set_requires_grad();
  const auto rates = [&](const optim::PlateauOptions& options, const std::vector<double>& losses) {
    optim::Sgd sgd({p}, {.lr = 1});
    optim::ReduceOnPlateau plateau(sgd, options);
    std::vector<double> seen;
    for (const double loss : losses) plateau.step(loss), seen.push_back(sgd.lr());
    return seen;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  using Rates = std::vector<double>;
  CHECK(rates({.factor = 0.5, .patience = 1}, {3, 2, 2, 2, 2, 2}) ==
        Rates{1, 1, 1, 0.5, 0.5, 0.25});
  CHECK(rates({.factor = 0.5, .patience = 0, .cooldown = 2}, {3, 3, 3, 3, 3}) ==
        Rates{1, 0.5, 0.5, 0.5, 0.25});
  CHECK(rates({.factor = 0.5, .patience = 0, .threshold = 0.1}, {10, 9.5, 8}) ==
        Rates{1, 0.5, 0.5});
  CHECK(rates({.larger_is_better = true, .factor = 0.5, .patience = 0}, {1, 2, 1.5, nan}) ==
        Rates{1, 1, 0.5, 0.25});
  CHECK(rates({.factor = 0.5, .patience = 0, .min_lr = 0.4}, {1, 1, 1, 1}) ==
        Rates{1, 0.5, 0.4, 0.4});
  optim::Sgd sgd({p}, {.lr = 1});
  CHECK_THROWS_AS(optim::ReduceOnPlateau(sgd, {.factor = 1}), UsageError);
  CHECK_THROWS_AS(optim::ReduceOnPlateau(sgd, {.patience = -1}), UsageError);
}

TEST_CASE("clipping by any p-norm") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const DType dtype : {f64, f32, bf16})
    for (const double p : {1.0, 1.5, 2.0, 3.0, inf}) {
      CAPTURE(p);
      Tensor a = zeros({2}, dtype).set_requires_grad(), b = zeros({1}, dtype).set_requires_grad();
      a.set_grad(from({3, -4}, dtype)), b.set_grad(from({12}, dtype));
      const double expected =
          std::isinf(p) ? 12 : std::pow(std::pow(3, p) + std::pow(4, p) + std::pow(12, p), 1 / p);
      const Tensor norm = optim::clip_grad_norm({a, b}, 1, {.norm_type = p});
      CHECK(norm.item() == doctest::Approx(expected).epsilon(1e-6));
      CHECK(values(a.grad())[1] ==
            doctest::Approx(-4 / expected).epsilon(4 * epsilon(dtype) + 1e-6));
    }
  Tensor huge = zeros({2}).set_requires_grad();
  huge.set_grad(from({1e30, 1e30}));
  CHECK(optim::clip_grad_norm({huge}, 1, {.norm_type = 3}).item() ==
        doctest::Approx(std::cbrt(2) * 1e30));
  CHECK_THROWS_AS(optim::clip_grad_norm({huge}, 1, {.norm_type = 0}), UsageError);
  CHECK(optim::clip_grad_norm({}, 1, {.norm_type = 1}).item() == 0);
}

}  // namespace

}  // namespace halftone::test::variants_and_schedules_test
