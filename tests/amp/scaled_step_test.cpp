// A raw step on gradients of a scaled loss is an error, for every way of scaling. Steps that
// unscale first are allowed.
#include <doctest/doctest.h>

#include <halftone/core/backend.h>
#include <halftone/halftone.h>
#include <halftone/optim/optimizer.h>

#include "../support.h"
#include "own_optimizer.h"

namespace halftone::test::scaled_step_test {
namespace {

using amp::GradScaler;
using doctest::Contains;

constexpr const char* refusal =
    "[Sgd] the gradient of parameter 0, [2] f32, is of a loss that was multiplied by a loss scale, "
    "and step() would take it as it is. Call training.step(), or scaler.step(optimizer), or "
    "scaler.unscale(optimizer) first.";

struct Scaled {
  Tensor w = ones({2}).set_requires_grad();
  optim::Sgd sgd{{w}, 0.5};
  GradScaler scaler{{.init_scale = 8}};
  void backward() { scaler.scale(sum(w)).backward(); }
  bool moved_by_half() const { return w.to_vector<double>() == std::vector<double>{0.5, 0.5}; }
};

TEST_CASE("an optimizer's own step() refuses gradients of a scaled loss") {
  Scaled s;
  s.backward();
  CHECK(message_of<UsageError>([&] { s.sgd.step(); }) == refusal);
  CHECK(s.w.to_vector<double>() == std::vector<double>{1, 1});
  s.backward();  // accumulated
  CHECK_THROWS_AS(s.sgd.step(), UsageError);
  sum(s.w).backward();  // adding an unscaled gradient does not make the sum right
  CHECK_THROWS_AS(s.sgd.step(), UsageError);
  OwnOptimizer own({s.w});
  CHECK_THROWS_WITH_AS(own.step(), Contains("[Optimizer.step] the gradient of parameter 0"),
                       UsageError);
}

TEST_CASE("steps that handle the loss scale are allowed") {
  SUBCASE("the scaler") {
    Scaled s;
    s.backward();
    CHECK(s.scaler.step(s.sgd));
    CHECK(s.moved_by_half());
  }
  SUBCASE("unscale() before the optimizer's step()") {
    Scaled s;
    s.backward();
    s.scaler.unscale(s.sgd);
    s.sgd.step();
    CHECK(s.moved_by_half());
  }
  SUBCASE("a loop that divides in place by itself") {
    Scaled s;
    s.backward();
    std::vector<Tensor> gradients = s.sgd.gradients();
    optim::scale_gradients(gradients, scalar(1.0 / 8));
    s.sgd.step();
    CHECK(s.moved_by_half());
  }
  SUBCASE("a gradient that is put in its place") {
    Scaled s;
    s.backward();
    s.w.set_grad(s.w.grad() / 8.0);
    s.sgd.step();
    CHECK(s.moved_by_half());
  }
  SUBCASE("a factor") {
    Scaled s;
    s.backward();
    s.sgd.step({.factor = scalar(1.0 / 8)});
    CHECK(s.moved_by_half());
  }
  SUBCASE("zero_grad() and a loss that is not scaled") {
    for (const bool to_none : {true, false}) {
      Scaled s;
      s.backward();
      s.sgd.zero_grad(to_none);
      sum(s.w).backward();
      s.sgd.step();
      CHECK(s.moved_by_half());
    }
  }
  SUBCASE("a scaler that is off") {
    Scaled s;
    GradScaler off({}, {.enabled = false});
    off.scale(sum(s.w)).backward();
    s.sgd.step();
    CHECK(s.moved_by_half());
  }
}

TEST_CASE("gradients of a checkpointed segment are scaled as those around it") {
  Scaled s;
  const Tensor x = ones({2}).set_requires_grad();
  const Tensor y = checkpoint([&](const std::vector<Tensor>& in) { return in[0] * s.w; }, {x});
  s.scaler.scale(sum(y)).backward();
  CHECK_THROWS_AS(s.sgd.step(), UsageError);
}

TEST_CASE("under a strategy that scales the loss, training.step() is the only step") {
  for (const char* name : {"amp-fp16", "o2-fp16"})
    for (const bool fused : {true, false}) {
      CAPTURE(name);
      CAPTURE(fused);
      manual_seed(3);
      nn::Linear model(4, 2);
      optim::AdamW adamw(model.parameters(), {.lr = 1e-2});
      amp::Strategy strategy = amp::Strategy::named(name);
      strategy.fused_master = fused;
      amp::Training training = amp::apply(strategy, model, adamw);
      const Tensor before = model.weight.clone();
      training.backward(mean(training.forward(model, ones({3, 4}))) * 0.5);
      CHECK_THROWS_WITH_AS(training.optimizer().step(), Contains("Call training.step()"),
                           UsageError);
      if (fused) CHECK_THROWS_AS(adamw.step(), UsageError);
      CHECK(model.weight.to_vector<double>() == before.to_vector<double>());
      CHECK(training.step());
      CHECK(model.weight.to_vector<double>() != before.to_vector<double>());
      training.zero_grad();
      training.backward(mean(training.forward(model, ones({3, 4}))) * 0.5);
      training.clip_grad_norm(1e9);  // a factor of 1
      CHECK(training.step());
    }
}

TEST_CASE("without a loss scale the optimizer's own step() is equivalent") {
  nn::Linear model(4, 2);
  optim::AdamW adamw(model.parameters(), {.lr = 1e-2});
  amp::Training training = amp::apply("amp-bf16", model, adamw);  // by the strategy's name
  CHECK(training.strategy().name == "amp-bf16");
  training.backward(mean(training.forward(model, ones({3, 4}))) * 0.5);
  adamw.step();
  CHECK_THROWS_WITH_AS(amp::apply("amp-bf61", model, adamw), Contains("amp-bf16"), UsageError);
}

}  // namespace
}  // namespace halftone::test::scaled_step_test
