// The predefined callbacks with a Trainer.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <thread>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/train/callbacks.h>

#include "../support.h"
#include "train/trainer_cases.h"
#include "trainer_cases.h"

namespace halftone::test::callbacks_test {
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
  CHECK(validations({.metric = "score"}, {5, nan, 4, 3, 2, 1}) == 2);
  CHECK(validations({.metric = "score", .patience = 2, .check_finite = false},
                    {5, nan, 4, nan, nan, 1}) == 5);
  CHECK(validations({.metric = "score", .larger_is_better = true, .patience = 1},
                    {1, 2, 3, 3, 4, 5}) == 4);
  CHECK(validations({.metric = "score", .patience = 1, .min_delta = 0.5}, {5, 4, 3.6, 3, 2, 1}) ==
        3);
}

/// A run whose fifth batch has a NaN, and the weights after its last good step.
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
    for (const auto& [name, x] : nn::state_dict(run.parts.model))  // also running statistics
      for (const double value : x.to_vector<double>())
        if (!std::isfinite(value)) return false;
    return true;
  }
};

TEST_CASE("EarlyStopping needs a validation, and stays stopped over restarts") {
  const auto stopping = std::make_shared<train::EarlyStopping>();
  TrainerRun blind({.max_epochs = 1, .callbacks = {stopping}});
  CHECK(message_of<UsageError>([&] { blind.trainer.fit(trainer_loader()); }) ==
        "[EarlyStopping] nothing validates, so val/loss will never be looked at. Pass fit() a "
        "second loader, or leave this out.");
  const TemporaryDirectory directory;
  for (int start = 0; start < 3; ++start) {
    // Two callbacks of one kind, on one metric: each keeps its own state.
    const auto patient =
        std::make_shared<train::EarlyStopping>(train::EarlyStoppingOptions{.patience = 50});
    const auto hasty = std::make_shared<train::EarlyStopping>(
        train::EarlyStoppingOptions{.patience = 1, .min_delta = 1e9});
    TrainerRun run({.max_epochs = 20,
                    .directory = directory.path(),
                    .resume = true,
                    .callbacks = {patient, hasty}});
    CHECK(run.trainer.fit(trainer_loader(), trainer_loader()).epochs == 2);
  }
}

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
  CHECK_FALSE(unwatched.finite());  // the case that the policy prevents
}

TEST_CASE("NanPolicy: patience counts steps, also if each has a good batch") {
  const auto policy = std::make_shared<train::NanPolicy>(
      train::NanPolicyOptions{.action = train::OnNan::drop_step, .patience = 3});
  const auto hooks = std::make_shared<Hooks>();
  int64_t batches = 0;
  hooks->batch = [&](data::Batch& batch) {
    if (++batches % 2 == 0) batch.inputs = batch.inputs * std::numeric_limits<double>::infinity();
  };
  TrainerRun run({.max_steps = 100,
                  .accumulate_batches = 2,
                  .limit_train_batches = 4,
                  .callbacks = {hooks, policy}});
  CHECK(run.trainer.fit(trainer_loader()).reason == "the loss is not finite after step 0");
  CHECK(policy->dropped_steps() == 3);
}

TEST_CASE("NanPolicy: a restart checks the same batches") {
  const auto fit = [](const std::filesystem::path& directory, int64_t steps) {
    const auto policy = std::make_shared<train::NanPolicy>(
        train::NanPolicyOptions{.action = train::OnNan::drop_step, .every_batches = 3});
    const auto hooks = std::make_shared<Hooks>();
    hooks->fit_start = [hooks](Trainer& trainer) {
      hooks->batch = [step = trainer.position().step](data::Batch& batch) mutable {
        if (++step == 10) batch.inputs = batch.inputs * std::numeric_limits<double>::quiet_NaN();
      };
    };
    TrainerRun run(
        {.max_steps = steps, .directory = directory, .resume = true, .callbacks = {hooks, policy}});
    run.trainer.fit(trainer_loader());
    hooks->fit_start = nullptr, hooks->batch = nullptr;  // they hold the hooks themselves
    return std::pair(policy->dropped_steps(), run.state());
  };
  const TemporaryDirectory directory;
  const auto whole = fit(directory / "whole", 13);
  CHECK(whole.first == 1);
  fit(directory / "parts", 7);
  const auto parts = fit(directory / "parts", 13);
  CHECK(parts.first == 1);
  CHECK(same_state(parts.second, whole.second));
}

TEST_CASE(
    "a callback that drops steps must say so, and one that replaces batches keep their size") {
  struct Silent final : train::Callback {
    bool on_loss(Trainer&, const Tensor&) override { return false; }
  };
  TrainerRun silent({.max_epochs = 1, .callbacks = {std::make_shared<Silent>()}});
  CHECK(message_of<UsageError>([&] { silent.trainer.fit(trainer_loader()); }) ==
        "[Trainer] a callback dropped a step, but its drops_steps() is false. Let it say true, so "
        "that buffers are kept.");
  const auto hooks = std::make_shared<Hooks>();
  hooks->batch = [](data::Batch& batch) {
    batch = {views::slice(batch.inputs, 0, 0, 3), views::slice(batch.targets, 0, 0, 3)};
  };
  TrainerRun fewer({.max_epochs = 1, .callbacks = {hooks}});
  CHECK(message_of<UsageError>([&] { fewer.trainer.fit(trainer_loader()); }) ==
        "[Trainer] a callback made a batch of 16 samples one of 3. Keep their number.");
}

TEST_CASE("the state of callbacks may be wrong: any number is accepted") {
  const double wild[] = {std::numeric_limits<double>::quiet_NaN(), 1e300, -1e300, -0.5};
  for (const double value : wild) {
    train::EarlyStopping stopping;
    train::NanPolicy policy;
    stopping.load_state({{"waited", value}});
    policy.load_state({{"batches", value}, {"dropped", value}, {"unknown", value}});
    CHECK(stopping.state().at("waited") == (value == 1e300 ? 0x1p53 : 0));
    CHECK(policy.dropped_steps() == (value == 1e300 ? int64_t(1) << 53 : 0));
  }
}

TEST_CASE("NanPolicy: overflows of scaled gradients are left to the scaler") {
  amp::Policy strategy = amp::Policy::named("amp-fp16");
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
  const double last = optim::LrSchedule::linear(10).at(9);  // of the tenth step, the last
  CHECK(metrics.at("lr/0") == 0.5 * last);
  CHECK(metrics.at("lr/1") == 0.25 * last);
  CHECK(metrics.at("steps_per_second") > 0);
  CHECK(metrics.at("samples_per_second") > 10 * metrics.at("steps_per_second"));

  TrainerRun one({.max_steps = 3,
                  .log_every_steps = 1,
                  .callbacks = {std::make_shared<train::LearningRateMonitor>()}});
  CHECK(one.trainer.fit(trainer_loader()).metrics.at("lr") == 1e-2);
}

TEST_CASE("a Trainer that is destroyed while it trains ends with an error") {
  for (const int when : {0, 1, 2, 3, 4}) {
    CAPTURE(when);
    TrainerCase parts;
    const auto hooks = std::make_shared<Hooks>(), after = std::make_shared<Hooks>();
    std::unique_ptr<Trainer> trainer;
    train::Task task = parts.task();
    bool later = false;
    hooks->fit_start = [&](Trainer& given) {
      given.note("");  // the callbacks' own handle
      if (when == 0) trainer.reset();
    };
    hooks->batch = [&](data::Batch&) {
      if (when == 1) trainer.reset();
    };
    hooks->loss = [&](const Tensor&) {
      if (when == 2) trainer.reset();
      return true;
    };
    hooks->step_end = [&](Trainer& given) {
      if (when == 3) trainer.reset();
      CHECK(given.position().step == 1);
    };
    if (when == 4)
      task.loss = [&, loss = task.loss](const Tensor& outputs, const Tensor& targets) {
        trainer.reset();
        return loss(outputs, targets);
      };
    after->step_end = [&](Trainer&) { later = true; };
    trainer = std::make_unique<Trainer>(task, parts.adamw,
                                        quiet({.max_steps = 5, .callbacks = {hooks, after}}));
    CHECK_THROWS_WITH_AS(
        trainer->fit(trainer_loader()),
        "[Trainer] it was destroyed by a callback or another function that it called. Destroy it "
        "after fit() has returned, and call stop() to end earlier.",
        UsageError);
    CHECK(trainer == nullptr);
    CHECK_FALSE(later);
    Trainer(parts.task(), parts.adamw, quiet({.max_steps = 1})).fit(trainer_loader());
  }
}

}  // namespace
}  // namespace halftone::test::callbacks_test

// Telemetry of a Trainer's run: the same bits with it, a file of JSON lines, numbers in the log;
// and the Trainer's note on a skipped step.

namespace halftone::test::precision_monitor_test {
namespace {

TEST_CASE(
    "a monitored training has the bits of an unmonitored one, file and log have its numbers") {
  const TemporaryDirectory directory;
  TrainerRun plain({.precision = "bf16-mixed", .max_steps = 12, .log_every_steps = 3});
  plain.trainer.fit(trainer_loader());
  TrainerRun watched(
      {.precision = "bf16-mixed",
       .max_steps = 12,
       .directory = directory.path(),
       .json_lines = true,
       .log_every_steps = 3,
       .callbacks = {std::make_shared<train::PrecisionMonitor>(policy::ProbeOptions{.every = 4})}});
  watched.trainer.fit(trainer_loader());
  const auto before = plain.state(), after = watched.state();
  REQUIRE(before.size() == after.size());
  for (const auto& [name, x] : before) {
    CAPTURE(name);
    CHECK(x.to_vector<double>() == after.at(name).to_vector<double>());
  }
  CHECK(watched.trainer.metric("precision/least_sqnr") > 30);
  CHECK(watched.trainer.metric("precision/lost_updates") < 0.01);
  std::ifstream file(directory.path() / "probe.jsonl");
  std::set<int64_t> steps;
  for (std::string line; std::getline(file, line);)
    steps.insert(nlohmann::json::parse(line)["step"].get<int64_t>());
  CHECK(steps == std::set<int64_t>{0, 4, 8});
}

TEST_CASE("a skipped step is explained, and training continues with the same bits") {
  amp::Policy strategy = amp::Policy::named("amp-fp16");
  strategy.loss_scale.init_scale = 0x1p40;
  const TemporaryDirectory directory;
  const std::filesystem::path said = directory.path() / "said";
  const auto run = [&](bool explains, std::FILE* output) {
    TrainerCase parts;
    train::Trainer trainer(parts.task(), parts.adamw,
                           {.strategy = strategy,
                            .max_steps = 30,
                            .accumulate_batches = 2,
                            .explain_overflows = explains,
                            .model_summary = false,
                            .output = output});
    trainer.fit(trainer_loader());
    CHECK(trainer.training().skipped_steps() > 3);
    return copy_of(trainer.training().state_dict());
  };
  std::FILE* const none = std::fopen("/dev/null", "w");
  std::FILE* const file = std::fopen(said.c_str(), "w");
  const auto quietly = run(false, none), telling = run(true, file);
  std::fclose(none), std::fclose(file);
  for (const auto& [name, x] : quietly) {
    CAPTURE(name);
    CHECK(x.to_vector<double>() == telling.at(name).to_vector<double>());
  }
  std::ifstream text(said);
  const std::string all((std::istreambuf_iterator<char>(text)), {});
  CHECK(all.find("step 1 skipped: ") != std::string::npos);
  CHECK(all.find("/linear.0, grad_output: ") != std::string::npos);
  CHECK(all.find("would do") != std::string::npos);
}

}  // namespace
}  // namespace halftone::test::precision_monitor_test

// Two trainings at once, in two threads of one process: each ends with the bits of the same
// training alone. In the preset `tsan` races between them would be found.

namespace halftone::test::two_threads_test {
namespace {

optim::NamedTensors trained(const std::string& precision, const std::filesystem::path& directory) {
  TrainerRun run({.precision = precision,
                  .max_steps = 9,
                  .clip_norm = 1,
                  .directory = directory,
                  .checkpoints = {.every_steps = 3},
                  .callbacks = {std::make_shared<train::WeightAverage>()}});
  data::DataLoader loader =
      trainer_loader({.batch_size = 16, .shuffle = true, .workers = 2, .prefetch = 2, .seed = 3});
  run.trainer.fit(loader, loader);
  optim::NamedTensors state;
  for (const auto& [name, x] : run.trainer.training().state_dict()) state[name] = x.clone();
  return state;
}

TEST_CASE("two trainings in two threads end as each would alone") {
  const TemporaryDirectory directory;
  const std::vector<std::string> precisions{"amp-fp16", "split-bf16", "o2-bf16", "bf16-mixed"};
  for (std::size_t i = 0; i < precisions.size(); i += 2) {
    std::vector<optim::NamedTensors> alone(2), together(2);
    const auto folder = [&](const char* kind, std::size_t k) {
      return directory / (kind + std::to_string(i + k));
    };
    for (std::size_t k : {0u, 1u}) alone[k] = trained(precisions[i + k], folder("alone", k));
    {
      std::vector<std::jthread> threads;
      for (std::size_t k : {0u, 1u})
        threads.emplace_back(
            [&, k] { together[k] = trained(precisions[i + k], folder("both", k)); });
    }
    for (std::size_t k : {0u, 1u}) CHECK(same_state(alone[k], together[k]));
  }
}

}  // namespace
}  // namespace halftone::test::two_threads_test
