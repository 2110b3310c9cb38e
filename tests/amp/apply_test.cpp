// Applying a strategy to a model and an optimizer: combinations that fit, optimizers of users, and
// refusals that change nothing; and the misuse of the methods of a step.
#include <cmath>
#include <limits>

#include "cases.h"
#include "own_optimizer.h"

namespace halftone::test::apply_test {
namespace {

using amp::Strategy;
using doctest::Contains;

TEST_CASE("apply() refuses models and optimizers that do not fit each other") {
  nn::Linear model(4, 2), other(4, 2);
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  CHECK_THROWS_WITH_AS(
      amp::apply(Strategy::named("o2-bf16"), other, sgd),
      doctest::Contains("the optimizer has a parameter [2, 4] f32 that the model has "
                        "not"),
      UsageError);
  Strategy split_f16 = Strategy::named("split-bf16");
  split_f16.weights = f16;
  CHECK_THROWS_WITH_AS(amp::apply(split_f16, model, sgd),
                       doctest::Contains("split_rounded keeps bf16 parameters only, one is f16"),
                       DTypeError);
  CHECK(model.weight.dtype() == f32);
  model.to(bf16);
  CHECK_THROWS_WITH_AS(amp::apply(Strategy::named("o2-bf16"), model, sgd),
                       doctest::Contains("Give the strategy a model in f32"), DTypeError);
}

TEST_CASE("weights are floating") {
  nn::Linear model(4, 2);
  optim::Sgd sgd(model.parameters());
  Strategy strategy = Strategy::named("full-bf16");
  strategy.weights = i32;
  CHECK_THROWS_WITH_AS(amp::apply(strategy, model, sgd),
                       "[amp.apply] full-bf16 has i32 weights. Use f64, f32, f16 or bf16.",
                       DTypeError);
}

// --- optimizers of users

/// Two steps on the sum of a linear layer's outputs; the model's weight afterwards, in f32.
template <class Optimizer> Tensor stepped(const Strategy& strategy, Optimizer&& make) {
  manual_seed(1);
  nn::Linear model(8, 4);
  auto optimizer = make(model.parameters());
  amp::Training training = amp::apply(strategy, model, optimizer);
  const Tensor x = randn({3, 8});
  for (int i = 0; i < 2; ++i) {
    training.zero_grad();
    training.backward(sum(training.forward(model, x)));
    CHECK(training.step());
  }
  REQUIRE(training.masters());
  CHECK(same_bits(model.weight.detach(), cast(training.masters()->weight(0), strategy.weights)));
  return training.masters()->weight(0);
}

TEST_CASE("an optimizer that does not update through the backend has masters in the plain way") {
  for (const char* name : {"o2-bf16", "o2-fp16"})
    for (const bool accumulates : {false, true}) {
      Strategy strategy = Strategy::named(name);
      strategy.accumulate_in_f32 = accumulates, strategy.loss_scale.init_scale = 1024;
      const Tensor own = stepped(strategy, [](auto p) { return OwnOptimizer(p); });
      strategy.fused_master = false;
      CHECK(same_bits(own, stepped(strategy, [](auto p) { return optim::Sgd(p, {.lr = 0.5}); })));
    }
  nn::Linear model(4, 2);
  OwnOptimizer own(model.parameters());
  amp::Training training = amp::apply(Strategy::named("o2-bf16"), model, own);
  CHECK_FALSE(training.masters()->options().fused);
}

TEST_CASE("forms that live in the update are refused for such an optimizer, before any cast") {
  Strategy sums = Strategy::named("full-bf16");
  sums.accumulate_in_f32 = true;
  const std::vector<std::pair<Strategy, std::string>> cases{
      {Strategy::named("split-bf16"),
       "[amp.apply] split-bf16 keeps weights in form split_rounded, which needs an optimizer that "
       "updates "
       "through the backend; this one does not. Use a strategy of form master, for example "
       "o2-bf16."},
      {Strategy::named("full-bf16-kahan"), "full-bf16-kahan keeps weights in form kahan"},
      {Strategy::named("full-bf16-sr"), "full-bf16-sr keeps weights in form stochastic"},
      {sums,
       "[amp.apply] accumulate_in_f32 without masters needs an optimizer that updates through the "
       "backend, which this one does not. Use a strategy of form master, or leave "
       "accumulate_in_f32 off."}};
  for (const auto& [strategy, message] : cases) {
    CAPTURE(message);
    nn::Linear model(4, 2);
    OwnOptimizer own(model.parameters());
    const auto handles = nn::state_dict(model);
    const auto before = copy_of(handles);
    const Storage* const storage = model.weight.storage().get();
    CHECK_THROWS_WITH_AS(amp::apply(strategy, model, own), Contains(message.c_str()), UsageError);
    CHECK(same_state(before, nn::state_dict(model)));
    CHECK(model.weight.storage().get() == storage);
    CHECK(own.own[0].body() == model.weight.body());
  }
  nn::Linear model(4, 2);
  OwnOptimizer own(model.parameters());
  CHECK(amp::apply(Strategy::named("full-bf16"), model, own).masters() == nullptr);
}

TEST_CASE("an optimizer of batch norm alone has f32 parameters and needs no masters") {
  for (const bool accumulates : {false, true}) {
    manual_seed(2);
    nn::Sequential model(nn::Linear(6, 4), nn::BatchNorm1d(4));
    const std::vector<Tensor> all = model.parameters();
    optim::Sgd sgd({all.end() - 2, all.end()}, {.lr = 0.1});
    Strategy strategy = Strategy::named("o2-bf16");
    strategy.accumulate_in_f32 = accumulates;
    amp::Training training = amp::apply(strategy, model, sgd);
    CHECK(training.masters() == nullptr);
    CHECK(all[0].dtype() == bf16);
    CHECK(all[2].dtype() == f32);
    const Tensor before = all[3].clone();
    training.backward(sum(training.forward(model, randn({5, 6}))));
    CHECK(training.step());
    CHECK_FALSE(same_bits(before, all[3].detach()));
    const auto state = copy_of(training.state_dict());
    training.load_state_dict(state);
    CHECK(same_state(state, training.state_dict()));
  }
}

// --- methods

TEST_CASE("the norm to clip to is 0 or more") {
  StrategyCase run("amp-fp16");
  run.training.backward(run.loss());
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN()})
    CHECK_THROWS_WITH_AS(run.training.clip_grad_norm(bad),
                         Contains("[Training.clip_grad_norm] max_norm is"), UsageError);
  CHECK_THROWS_WITH_AS(run.training.clip_grad_norm(-1),
                       "[Training.clip_grad_norm] max_norm is -1. Use 0 or more.", UsageError);
  CHECK(run.training.clip_grad_norm(0).item() > 0);
  CHECK(run.training.step());
}

TEST_CASE("the norm is a sum in f64, and infinite if a gradient is") {
  nn::Linear model(1, 1);
  optim::Sgd sgd(model.parameters());
  amp::Training training = amp::apply(Strategy::named("fp32"), model, sgd);
  model.weight.set_grad(full({1, 1}, 0x1p15)), model.bias.set_grad(ones({1}));
  CHECK(training.clip_grad_norm(1).item() == std::sqrt(0x1p30 + 1));  // in f32 the 1 would be lost
  model.weight.set_grad(full({1, 1}, std::numeric_limits<double>::infinity()));
  CHECK(std::isinf(training.clip_grad_norm(1).item()));
}

TEST_CASE("report() after unscale() is refused: the gradients are divided already") {
  Tensor w = ones({2}).set_requires_grad();
  optim::Sgd sgd({w}, {.lr = 0.5});
  amp::GradScaler scaler({.init_scale = 4});
  scaler.scale(sum(w)).backward();
  scaler.unscale(sgd);
  CHECK_THROWS_WITH_AS(scaler.report(sgd, zeros({})),
                       Contains("[GradScaler.report] called after unscale() of this optimizer"),
                       UsageError);
  CHECK(scaler.step(sgd));  // as without the refused report
  CHECK(w.at({0}) == 0.5);
}

TEST_CASE("a loss that the scaler has no scale for") {
  amp::GradScaler scaler;
  CHECK_THROWS_WITH_AS(scaler.scale_value(1),
                       "[GradScaler] got loss 1, but the scaler has 1 (0 is the first). Set "
                       "ScalerUse::losses when the scaler is made.",
                       UsageError);
  CHECK_THROWS_WITH_AS(scaler.loss_scale(-1), Contains("got loss -1, but the scaler has 1"),
                       UsageError);
  CHECK_THROWS_WITH_AS(amp::GradScaler({}, {.losses = -2}),
                       "[GradScaler] got -2 losses. Use 1 or more.", UsageError);
}

}  // namespace
}  // namespace halftone::test::apply_test
