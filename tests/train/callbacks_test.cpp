// The ready-made callbacks around a Trainer.
#include "trainer_cases.h"

#include <cmath>
#include <limits>

#include <halftone/train/early_stopping.h>
#include <halftone/train/monitors.h>
#include <halftone/train/nan_policy.h>

namespace halftone::testing {
namespace {

using train::Trainer;

TEST_CASE("EarlyStopping: patience, direction, least improvement, NaN") {
  const auto validations = [](const train::EarlyStoppingOptions& options,
                              std::vector<double> values) {
    const auto made = std::make_shared<Hooks>();
    const auto stopping = std::make_shared<train::EarlyStopping>(options);
    int64_t seen = 0;
    made->validation_end = [&](Trainer& trainer) {
      trainer.log("score", values[std::size_t(std::min<int64_t>(seen++, 5))]);
    };
    TrainerRun run({.max_epochs = 6, .limit_train_batches = 1, .callbacks = {made, stopping}});
    run.trainer.fit(trainer_loader(), trainer_loader());
    return seen;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(validations({.metric = "score", .patience = 2}, {5, 4, 4, 3, 3, 3}) == 6);
  CHECK(validations({.metric = "score", .patience = 2}, {5, 4, 4, 4, 1, 1}) == 4);
  CHECK(validations({.metric = "score", .patience = 1}, {5, nan, 4, 3, 2, 1}) == 2);
  CHECK(validations({.metric = "score", .larger_is_better = true, .patience = 1},
                    {1, 2, 3, 3, 4, 5}) == 4);
  CHECK(validations({.metric = "score", .patience = 1, .min_delta = 0.5}, {5, 4, 3.6, 3, 2, 1}) ==
        3);
}

/// A run whose fifth batch has a NaN in it, and the weights after its last good step.
struct Spoilt {
  std::shared_ptr<Hooks> hooks = std::make_shared<Hooks>();
  std::shared_ptr<train::NanPolicy> policy;
  TrainerRun run;
  int64_t batches = 0;

  explicit Spoilt(const train::NanPolicyOptions& options, int64_t last_spoilt = 5,
                  std::string precision = "32-true")
      : policy(std::make_shared<train::NanPolicy>(options)),
        run({.precision = std::move(precision), .max_steps = 12, .callbacks = {hooks, policy}}) {
    hooks->batch = [this, last_spoilt](data::Batch& batch) {
      if (++batches >= 5 && batches <= last_spoilt)
        batch.inputs = batch.inputs * std::numeric_limits<double>::quiet_NaN();
    };
  }
  bool finite() {
    for (const Tensor& x : run.parts.model.parameters())
      for (const double value : x.to_vector<double>())
        if (!std::isfinite(value)) return false;
    return true;
  }
};

TEST_CASE("NanPolicy: stop, drop the step, or fail; the weights stay good") {
  Spoilt stopped({});
  const auto result = stopped.run.trainer.fit(trainer_loader());
  CHECK(result.reason == "the loss is not finite after step 4");
  CHECK(result.steps == 4);
  CHECK(stopped.finite());

  Spoilt dropped({.action = train::OnNan::drop_step});
  CHECK(dropped.run.trainer.fit(trainer_loader()).steps == 12);
  CHECK(dropped.batches == 13);
  CHECK(dropped.policy->dropped_steps() == 1);
  CHECK(dropped.finite());

  Spoilt hopeless({.action = train::OnNan::drop_step, .patience = 3}, 1000);
  CHECK(hopeless.run.trainer.fit(trainer_loader()).steps == 4);
  CHECK(hopeless.policy->dropped_steps() == 3);
  CHECK(hopeless.finite());

  Spoilt failed({.action = train::OnNan::fail});
  CHECK(message_of<UsageError>([&] { failed.run.trainer.fit(trainer_loader()); }) ==
        "[NanPolicy] the loss is nan after step 4. Lower the learning rate, clip gradients, or "
        "look at this batch.");
  CHECK(failed.finite());

  Spoilt unwatched({.every_batches = 1000});
  unwatched.run.trainer.fit(trainer_loader());
  CHECK_FALSE(unwatched.finite());  // what the policy is for
}

TEST_CASE("NanPolicy: overflows of scaled gradients are the scaler's business") {
  amp::Strategy strategy = amp::Strategy::named("amp-fp16");
  strategy.loss_scale.init_scale = 0x1p+30;
  const auto policy = std::make_shared<train::NanPolicy>();
  TrainerRun run({.strategy = strategy, .max_steps = 30, .callbacks = {policy}});
  CHECK(run.trainer.fit(trainer_loader()).steps == 30);
  CHECK(run.trainer.training().skipped_steps() > 3);
  CHECK(policy->dropped_steps() == 0);
}

TEST_CASE("a dropped step drops all its batches, and a dropped epoch still ends") {
  const auto hooks = std::make_shared<Hooks>();
  int64_t batches = 0;
  hooks->loss = [&](const Tensor&) { return ++batches % 2 == 1; };  // the second of each step fails
  TrainerRun run(
      {.max_epochs = 2, .accumulate_batches = 2, .limit_train_batches = 4, .callbacks = {hooks}});
  const auto result = run.trainer.fit(trainer_loader());
  CHECK(result.epochs == 2);
  CHECK(result.steps == 0);
  CHECK(batches == 8);
  for (const Tensor& x : run.parts.model.parameters()) CHECK_FALSE(x.grad().defined());
}

TEST_CASE("monitors log the rates of all groups, and the throughput") {
  TrainerCase c;
  optim::AdamW two({{.parameters = {c.model.parameters()[0]}, .options = {.lr = 0.5}},
                    {.parameters = {c.model.parameters()[1]}, .options = {.lr = 0.25}}});
  Trainer trainer(c.task(), two,
                  quiet({.max_steps = 10,
                         .schedule = [](int64_t n) { return optim::LrSchedule::linear(n); },
                         .log_every_steps = 5,
                         .callbacks = {std::make_shared<train::LearningRateMonitor>(),
                                       std::make_shared<train::ThroughputMonitor>()}}));
  const auto metrics = trainer.fit(trainer_loader(), trainer_loader()).metrics;
  CHECK(metrics.at("lr/0") == 0);
  CHECK(metrics.at("lr/1") == 0);
  CHECK(metrics.at("steps_per_second") > 0);
  CHECK(metrics.at("samples_per_second") > 10 * metrics.at("steps_per_second"));

  TrainerRun one({.max_steps = 3,
                  .log_every_steps = 1,
                  .callbacks = {std::make_shared<train::LearningRateMonitor>()}});
  CHECK(one.trainer.fit(trainer_loader()).metrics.at("lr") == 1e-2);
}

}  // namespace
}  // namespace halftone::testing
