// Lesson 8: the update that bf16 loses. You will see one weight that does not move, the four ways
// to make it move, and their effect in a training of thousands of steps.
#include <omp.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;
using ht::WeightForm;

namespace {

constexpr double weight = 1.23456, gradient = 1e-3, lr = 0.1;

/// `copies` of one weight in bf16, with an optimizer that stores it in one weight form.
struct OneWeight {
  ht::Tensor parameter;
  std::unique_ptr<ht::optim::Sgd> sgd;
  std::unique_ptr<ht::amp::MasterWeights> masters;

  /// known_in_f32: masters start from the f32 weight; otherwise from its bf16 rounding, as in apex.
  OneWeight(WeightForm form, int64_t copies, bool known_in_f32) {
    const ht::Tensor full = ht::full({copies}, weight);
    parameter = ht::cast(full, ht::bf16).set_requires_grad();
    sgd = std::make_unique<ht::optim::Sgd>(std::vector{parameter}, ht::optim::SgdOptions{.lr = lr});
    if (form == WeightForm::plain) return;
    std::vector<ht::Tensor> initial;
    if (known_in_f32) initial.push_back(full);
    masters = std::make_unique<ht::amp::MasterWeights>(
        *sgd, ht::amp::MasterWeightsOptions{.form = form}, initial);
  }
  void step() {
    parameter.set_grad(ht::full(parameter.shape(), gradient, ht::bf16));
    masters ? masters->step() : sgd->step();
  }
};

void one_step() {
  std::printf("weight %.5f, gradient %g, learning rate %g: the update is %g\n\n", weight, gradient,
              lr, lr * gradient);
  const double stored = ht::full({}, weight, ht::bf16).item();
  const double spacing = std::ldexp(ht::epsilon(ht::bf16), std::ilogb(weight));
  std::printf("bf16 stores            %.6f: its spacing here is %.6f,\n", stored, spacing);
  std::printf("                       and half of it %.0f times the update\n",
              spacing / 2 / (lr * gradient));
  ht::Tensor f32_weight = ht::full({}, weight).set_requires_grad();
  ht::optim::Sgd sgd({f32_weight}, {.lr = lr});
  f32_weight.set_grad(ht::full({}, gradient));
  sgd.step();
  OneWeight nearest(WeightForm::plain, 1, true);
  nearest.step();
  std::printf("one step in f32        %.7f\n", f32_weight.item());
  std::printf("one step in bf16       %.6f: nothing changed, and never will\n",
              nearest.parameter.item());
  for (const bool known_in_f32 : {true, false}) {
    OneWeight master(WeightForm::master, 1, known_in_f32);
    int steps = 0;
    while (master.parameter.item() == stored) master.step(), ++steps;
    std::printf("f32 master from %-6s the bf16 view first moves at step %d, to %.7f\n",
                known_in_f32 ? "f32:" : "bf16:", steps, master.parameter.item());
  }
  constexpr int64_t copies = 100000;
  OneWeight chance(WeightForm::stochastic, copies, true);
  chance.step();
  const ht::Tensor now = ht::cast(chance.parameter.detach(), ht::f64);
  const double moved =
      ht::mean(ht::cast(ht::not_equal(now, ht::full({}, stored, ht::f64)), ht::f64)).item();
  std::printf(
      "stochastic rounding    moves %.2f %% of %ld copies; their mean is %.6f, wanted %.6f\n",
      100 * moved, long(copies), ht::mean(now).item(), stored - lr * gradient);
}

/// The result of thousands of steps with one weight form.
struct Outcome {
  double lost = 0, descent = 0, loss = 0;
};

Outcome train(std::optional<WeightForm> form) {
  constexpr int steps = 3000, measured_every = 10;
  ht::manual_seed(1);
  ht::nn::Sequential teacher = ht::nn::models::mlp({16, 32, 1}),
                     model = ht::nn::models::mlp({16, 32, 1});
  ht::optim::Sgd sgd(model.parameters(), {.lr = 0.02});
  ht::amp::Policy strategy = ht::amp::Policy::named(form ? "full-bf16" : "fp32");
  if (form) strategy.form = *form;
  ht::amp::Training training = ht::amp::apply(strategy, model, sgd);
  const std::vector<ht::Tensor> parameters = model.parameters();
  double lost = 0, counted = 0, along = 0, intended_squares = 0;
  const auto loss_on = [&](int64_t count) {
    const ht::Tensor x = ht::randn({count, 16});
    return ht::mse(training.forward(model, x), teacher(x).detach());
  };
  for (int step = 0; step < steps; ++step) {
    training.zero_grad();
    training.backward(loss_on(64));
    std::vector<ht::Tensor> before;  // empty in steps that are not measured
    for (const ht::Tensor& p : parameters)
      if (step % measured_every == 0) before.push_back(ht::cast(p.detach(), ht::f64));
    training.step();
    for (std::size_t i = 0; i < before.size(); ++i) {
      const ht::Tensor intended = ht::cast(parameters[i].grad(), ht::f64) * -0.02;
      const ht::Tensor applied = ht::cast(parameters[i].detach(), ht::f64) - before[i];
      const ht::Tensor zero = ht::zeros({}, ht::f64);
      const ht::Tensor wanted = ht::cast(ht::not_equal(intended, zero), ht::f64);
      lost += ht::sum(wanted * ht::cast(ht::equal(applied, zero), ht::f64)).item();
      counted += ht::sum(wanted).item();
      along += ht::sum(applied * intended).item();
      intended_squares += ht::sum(intended * intended).item();
    }
  }
  const ht::NoGrad no_grad;
  return {lost / counted, along / intended_squares, loss_on(4096).item()};
}

void thousands_of_steps() {
  std::printf("\n3000 steps of SGD, a small network learns the outputs of another one:\n\n");
  std::printf("%-16s %16s %18s %14s\n", "weights", "updates lost", "effective descent",
              "final loss");
  const auto line = [](const char* what, const Outcome& o) {
    std::printf("%-16s %14.1f %% %18.2f %14.6f\n", what, 100 * o.lost, o.descent, o.loss);
  };
  line("f32", train({}));
  line("bf16, nearest", train(WeightForm::plain));
  line("bf16, stochastic", train(WeightForm::stochastic));
  line("bf16, Kahan", train(WeightForm::kahan));
  line("bf16 + f32 master", train(WeightForm::master));
  line("bf16, split", train(WeightForm::split));
  std::printf(
      "\nupdates lost: the stored weight did not change. That alone says little: Kahan, master\n"
      "and split store what the bf16 weight does not show yet; stochastic rounding is right on\n"
      "average. Effective descent says how far the weights moved in the intended direction:\n"
      "<applied, intended> / <intended, intended>.\n");
}

void second_moments() {
  std::printf("\nAdam's second moment after one gradient of 30, then none (beta2 = 0.999):\n\n");
  std::printf("%8s %12s %12s\n", "step", "f32 state", "bf16 state");
  ht::Tensor a = ht::ones({1}).set_requires_grad(), b = ht::ones({1}).set_requires_grad();
  ht::optim::Adam wide({a}, {}), narrow({b}, {.state_dtype = ht::bf16});
  for (int step = 0; step <= 4000; ++step) {
    for (ht::Tensor* p : {&a, &b}) p->set_grad(ht::full({1}, step == 0 ? 30.0 : 0.0));
    wide.step(), narrow.step();
    if (step % 1000 == 0)
      std::printf("%8d %12.6f %12.6f\n", step, wide.state_dict().at("state.0.exp_avg_sq").item(),
                  narrow.state_dict().at("state.0.exp_avg_sq").item());
  }
  std::printf("\na thousandth is less than half a spacing of bf16, so the moment never decays.\n");
}

}  // namespace

int main() {
  omp_set_num_threads(1);  // the tensors are small
  one_step();
  thousands_of_steps();
  second_moments();
  return after_output();
}

// Conclusion. A bf16 weight cannot hold an update below half of its spacing. Store the missing bits
// (master, split, Kahan) or round at random: both train. The same holds for the optimizer's state.
//
// Exercises
// 1 (pencil). From which size of the weight on does an update of 1e-4 vanish in bf16? In f16?
// 2 (predict). Give the training a learning rate of 0.2. Is "bf16, nearest" better or worse
//   compared with f32 than before, and why?
// 3 (implement). Tasks 4 and 8 of examples/exercises/: Kahan and split; master weights.
// 4 (design). A second moment in bf16 that does decay: which of the weight forms would you use for
//   it, and what does it cost a parameter?
