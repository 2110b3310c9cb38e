// Averaged weights under every strategy and over restarts, rates lowered on a plateau, minimum
// numbers of steps, batches of several tensors, predictions, and refusals of a task.
#include <cmath>

#include <doctest/doctest.h>

#include <halftone/train/callbacks.h>
#include <halftone/train/task.h>

#include "trainer_cases.h"

namespace halftone::test::averages_and_batches_test {
namespace {

using train::Trainer;
using train::TrainerOptions;
using train::WeightAverage;

std::vector<double> values(const Tensor& x) { return x.to_vector<double>(); }

/// Returns the weight itself, from any form.
Tensor weight_now(Trainer& trainer, std::size_t i) {
  const Tensor parameter = trainer.training().optimizer().parameters()[i];
  if (trainer.training().masters() && size_of(parameter.dtype()) < size_of(f32))
    return trainer.training().masters()->weight(i);
  return cast(parameter.detach(), parameter.dtype() == f64 ? f64 : f32).clone();
}

TEST_CASE("WeightAverage: the averages of the weights themselves, under every strategy") {
  for (const std::string_view name : amp::Policy::names()) {
    CAPTURE(name);
    const auto average = std::make_shared<WeightAverage>(
        train::WeightAverageOptions{.decay = 0.75, .start_step = 2});
    const auto hooks = std::make_shared<Hooks>();
    std::vector<double> expected;
    hooks->step_end = [&](Trainer& trainer) {
      if (trainer.position().step < 2) return;
      const std::vector<double> weight = values(weight_now(trainer, 0));
      if (expected.empty()) expected = weight;
      else
        for (std::size_t i = 0; i < weight.size(); ++i)
          expected[i] += 0.25 * (weight[i] - expected[i]);
    };
    TrainerRun run({.precision = std::string(name), .max_steps = 7, .callbacks = {hooks, average}});
    run.trainer.fit(trainer_loader());
    CHECK(average->updates() == 6);
    const Tensor& first = average->averages()[0];
    CHECK(first.dtype() == (name == "fp64" ? f64 : f32));
    const std::vector<double> found = values(first);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      CHECK(std::abs(found[i] - expected[i]) <= 8 * epsilon(f32) * (1 + std::abs(expected[i])));
  }
}

TEST_CASE("WeightAverage: a plain mean; validations measure it, training is not affected") {
  const auto average = std::make_shared<WeightAverage>(train::WeightAverageOptions{.decay = {}});
  const TrainerOptions plain{.max_steps = 6, .validate_every_steps = 2};
  TrainerOptions averaged = plain;
  averaged.callbacks = {average};
  TrainerRun without(plain);
  const auto before = without.trainer.fit(trainer_loader(), trainer_loader());
  TrainerRun with(averaged);  // which seeds the generator
  const auto after = with.trainer.fit(trainer_loader(), trainer_loader());
  CHECK(same_state(without.state(), with.state()));
  CHECK(before.metrics.at("train/loss_epoch") == after.metrics.at("train/loss_epoch"));
  CHECK(before.metrics.at("val/loss") != after.metrics.at("val/loss"));
  const std::vector<double> own = values(with.parts.model.parameters()[0]);
  {
    const std::shared_ptr<void> held = average->in_place(with.trainer);
    CHECK(values(with.parts.model.parameters()[0]) == values(average->averages()[0]));
  }
  CHECK(values(with.parts.model.parameters()[0]) == own);
}

TEST_CASE("WeightAverage: in checkpoints, to the bit") {
  for (const char* precision : {"32-true", "o2-bf16", "split-bf16"}) {
    CAPTURE(precision);
    const TemporaryDirectory directory;
    const auto run = [&](const char* folder, int64_t steps, uint64_t seed) {
      const auto average = std::make_shared<WeightAverage>();
      TrainerRun one({.precision = precision,
                      .max_steps = steps,
                      .directory = directory / folder,
                      .checkpoints = {.every_steps = 1},
                      .resume = true,
                      .csv = false,
                      .callbacks = {average}},
                     seed);
      one.trainer.fit(trainer_loader());
      std::vector<std::vector<double>> all;
      for (const Tensor& x : average->averages()) all.push_back(values(x));
      CHECK(average->updates() == steps);
      return all;
    };
    const auto expected = run("whole", 9, 1);
    run("parts", 4, 1);
    CHECK(run("parts", 9, 55) == expected);
  }
}

TEST_CASE("WeightAverage: invalid options are refused") {
  CHECK_THROWS_AS(WeightAverage({.decay = 1}), UsageError);
  CHECK_THROWS_AS(WeightAverage({.every_steps = 0}), UsageError);
  const auto average = std::make_shared<WeightAverage>();
  TrainerRun first({.max_steps = 1, .callbacks = {average}});
  first.trainer.fit(trainer_loader());
  TrainerRun other({.max_steps = 1, .callbacks = {average}}, 1, 24);
  CHECK_THROWS_AS(other.trainer.fit(trainer_loader()), UsageError);
  CHECK_THROWS_AS(other.trainer.validate(trainer_loader()), UsageError);
}

TEST_CASE("LrOnPlateau: lowers the rate, and keeps its state over a restart") {
  const TemporaryDirectory directory;
  const auto run = [&](int64_t epochs) {
    const auto hooks = std::make_shared<Hooks>();
    hooks->validation_end = [](Trainer& trainer) { trainer.log("score", 1); };
    const auto plateau = std::make_shared<train::LrOnPlateau>(
        "score", optim::PlateauOptions{.factor = 0.5, .patience = 1});
    TrainerRun one({.max_epochs = epochs,
                    .limit_train_batches = 1,
                    .directory = directory.path(),
                    .resume = true,
                    .csv = false,
                    .callbacks = {hooks, plateau}});
    one.trainer.fit(trainer_loader(), trainer_loader());
    return one.parts.adamw.lr();
  };
  CHECK(run(2) == 1e-2);  // the first is the best so far, the second is within the patience
  CHECK(run(3) == 5e-3);
  CHECK(run(5) == 2.5e-3);
  TrainerRun scheduled({.max_epochs = 1,
                        .schedule = [](int64_t) { return optim::LrSchedule::constant(); },
                        .callbacks = {std::make_shared<train::LrOnPlateau>()}});
  CHECK_THROWS_AS(scheduled.trainer.fit(trainer_loader(), trainer_loader()), UsageError);
  TrainerRun blind({.max_epochs = 1, .callbacks = {std::make_shared<train::LrOnPlateau>()}});
  CHECK_THROWS_AS(blind.trainer.fit(trainer_loader()), UsageError);
}

TEST_CASE("Trainer: a request to stop waits for min_steps and min_epochs; limits do not") {
  const auto steps = [](TrainerOptions options) {
    const auto hooks = std::make_shared<Hooks>();
    hooks->step_end = [](Trainer& trainer) {
      trainer.stop("enough " + std::to_string(trainer.position().step));
    };
    options.callbacks = {hooks};
    TrainerRun run(std::move(options));
    const auto result = run.trainer.fit(trainer_loader());
    return std::pair(result.steps, result.reason);
  };
  CHECK(steps({.max_steps = 20}) == std::pair<int64_t, std::string>(1, "enough 1"));
  CHECK(steps({.max_steps = 20, .min_steps = 7}) == std::pair<int64_t, std::string>(7, "enough 7"));
  CHECK(steps({.max_epochs = 4, .min_epochs = 2}).first == 10);
  CHECK(steps({.max_steps = 3, .min_epochs = 2}).second == "max_steps is reached");
  CHECK_THROWS_AS(TrainerRun({.max_steps = 3, .min_steps = 4}), UsageError);
  CHECK_THROWS_AS(TrainerRun({.max_steps = 3, .min_steps = -1}), UsageError);
}

TEST_CASE("Trainer: predict() is in the loader's order, without dropout, and changes nothing") {
  TrainerRun run({.precision = "bf16-mixed", .max_epochs = 1});
  run.trainer.fit(trainer_loader());
  const data::DataLoader loader = trainer_loader({.batch_size = 10});
  const RandomKey before = default_generator().state();
  const Tensor outputs = run.trainer.predict(loader);
  CHECK(outputs.shape() == Shape{trainer_samples, 4});
  CHECK_FALSE(outputs.requires_grad());
  CHECK(values(outputs) == values(run.trainer.predict(loader)));
  CHECK(default_generator().state().offset == before.offset);
  CHECK(run.parts.model.training);
  CHECK_THROWS_AS(run.trainer.predict(trainer_loader()), UsageError);
}

TEST_CASE("Trainer: batches of several tensors") {
  manual_seed(4);
  const Tensor left = randn({64, 3}), right = randn({64, 3}), weights = rand({64});
  const Tensor target = sum(left * right, {1}, true);
  struct Two : nn::Module {
    nn::Linear first{3, 8}, second{3, 8}, last{8, 1};
    void describe(nn::Fields& field) override {
      field("first", first), field("second", second), field("last", last);
    }
  };
  for (const char* precision : {"32-true", "full-bf16", "o2-bf16"}) {
    CAPTURE(precision);
    Two model;
    optim::AdamW adamw(model.parameters(), {.lr = 2e-2});
    train::Task task{.model = model};
    task.forward_batch = [&model](const data::Batch& batch) {
      return model.last(model.first(batch.inputs) * model.second(batch.more.at(0)));
    };
    task.loss_of_batch = [](const Tensor& outputs, const data::Batch& batch) {
      return mean(mse(outputs, batch.targets, LossReduction::none) *
                  reshape(batch.more.at(1), {batch.inputs.size(0), 1}));
    };
    Trainer trainer(task, adamw, quiet({.precision = precision, .max_epochs = 30}));
    const data::DataLoader loader(data::TensorDataset({left, right, weights, target}),
                                  {.batch_size = 16});
    const double first = trainer.validate(loader).at("val/loss");
    const auto result = trainer.fit(loader, loader);
    CHECK(result.metrics.at("val/loss") < 0.2 * first);
    CHECK(trainer.predict(loader).shape() == Shape{64, 1});
  }
  Two model;
  optim::AdamW adamw(model.parameters());
  train::Task both{.model = model};
  both.forward = [](const Tensor& x) { return x; };
  both.forward_batch = [](const data::Batch& batch) { return batch.inputs; };
  both.loss = [](const Tensor& y, const Tensor&) { return sum(y); };
  CHECK_THROWS_AS(Trainer(both, adamw, quiet({.max_epochs = 1})), UsageError);
}

TEST_CASE(
    "Mixup: probabilities that sum to 1, the same after a restart, and a training that learns") {
  const auto shares = [](uint64_t seed) {
    const auto mixup =
        std::make_shared<train::Mixup>(4, train::MixupOptions{.alpha = 1, .seed = seed});
    const auto hooks = std::make_shared<Hooks>();
    std::vector<std::vector<double>> seen;
    hooks->batch = [&](data::Batch& batch) {
      CHECK(batch.targets.shape() == Shape{batch.inputs.size(0), 4});
      for (const double total : values(sum(batch.targets, {1}))) CHECK(total == doctest::Approx(1));
      seen.push_back(values(batch.targets));
    };
    TrainerRun run({.max_epochs = 2, .callbacks = {mixup, hooks}});
    const auto result = run.trainer.fit(trainer_loader(), trainer_loader());
    CHECK(result.metrics.at("val/top1") > 0.3);
    return seen;
  };
  const auto first = shares(1);
  CHECK(first == shares(1));
  CHECK(first != shares(2));
  CHECK(first[0] != first[5]);
  TrainerRun run({.max_epochs = 1});
  data::Batch ignored{ones({2, 12}), from({1.0, -100.0}, i64)};
  CHECK(
      message_of<UsageError>([&] { train::Mixup(4).on_batch_start(run.trainer, ignored); }) ==
      "[Mixup] the label -100 is none of the 4 classes: an ignored sample has no probabilities to "
      "blend. Leave such samples out of the dataset, or train without Mixup.");
  CHECK_THROWS_AS(train::Mixup(1), UsageError);
  CHECK_THROWS_AS(train::Mixup(4, {.alpha = -1}), UsageError);
}

TEST_CASE("outputs [n, 1] with targets [n] are refused, by losses, tasks and metrics") {
  nn::Sequential model(nn::Linear(4, 1));
  optim::Sgd sgd(model.parameters());
  Trainer trainer(train::regression(model), sgd, quiet({.max_epochs = 1}));
  const data::DataLoader loader(data::TensorDataset(randn({64, 4}), randn({64})),
                                {.batch_size = 64});
  CHECK(message_of<ShapeError>([&] { trainer.fit(loader); }) ==
        "[mse] the outputs are [64, 1] f32, the targets [64] f32. They must have the same shape: "
        "reshape or expand one.");
  const Tensor y = rand({8, 1}), t = rand({8});
  for (const std::function<Tensor()>& loss : std::vector<std::function<Tensor()>>{
           [&] { return mse(y, t); }, [&] { return l1(y, t); }, [&] { return smooth_l1(y, t); },
           [&] { return huber(y, t); }, [&] { return kl_div(y, t); },
           [&] { return kl_div(y, t, true); }, [&] { return binary_cross_entropy(y, t); },
           [&] { return bce_with_logits(y, t); }})
    CHECK_THROWS_AS(loss(), ShapeError);
  CHECK_THROWS_AS(train::MeanAbsoluteError().update(y, t), ShapeError);
  CHECK_THROWS_AS(train::R2Score().update(y, t), ShapeError);
  CHECK_THROWS_AS(train::language_modeling(model).loss(randn({2, 3, 5}), zeros({3, 2}, i64)),
                  ShapeError);
}

TEST_CASE("MAE and R2, in any batches, with a mean that takes all digits of f32") {
  manual_seed(2);
  const Tensor t = cast(randn({90}), f64) + 1e7, y = t + cast(randn({90}), f64) * 0.1;
  const std::vector<double> target = values(t), output = values(y);
  double mean_target = 0, absolute = 0, residuals = 0, spread = 0;
  for (const double v : target) mean_target += v / 90;
  for (std::size_t i = 0; i < target.size(); ++i) {
    absolute += std::abs(output[i] - target[i]) / 90;
    residuals += (output[i] - target[i]) * (output[i] - target[i]);
    spread += (target[i] - mean_target) * (target[i] - mean_target);
  }
  train::MeanAbsoluteError mae;
  train::R2Score r2, restored;
  for (const int64_t begin : {0, 7, 30}) {
    const int64_t end = begin == 0 ? 7 : begin == 7 ? 30 : 90;
    mae.update(slice(y, 0, begin, end), slice(t, 0, begin, end));
    if (begin == 30) restored.restore(r2.sums());
    r2.update(slice(y, 0, begin, end), slice(t, 0, begin, end));
  }
  restored.update(slice(y, 0, 30, 90), slice(t, 0, 30, 90));
  CHECK(mae.value() == doctest::Approx(absolute).epsilon(1e-12));
  CHECK(r2.value() == doctest::Approx(1 - residuals / spread).epsilon(1e-7));
  CHECK(restored.value() == r2.value());
  CHECK(std::isnan(train::R2Score().value()));
}

TEST_CASE("a parameter that no describe() names is found at the first backward pass") {
  struct Forgetful : nn::Layer {
    nn::Linear known{12, 4};
    nn::Parameter scale{ones({4})};
    nn::Linear also_forgotten{4, 4};
    Tensor forward(const Tensor& x) const override { return also_forgotten(known(x) * scale); }
    void describe(nn::Fields& field) override { field("known", known); }
  } model;
  optim::Sgd sgd(model.parameters());
  Trainer trainer(train::classification(model), sgd, quiet({.max_epochs = 1}));
  const std::string message = message_of<UsageError>([&] { trainer.fit(trainer_loader()); });
  CHECK(
      message.starts_with("[Training.backward] the loss depends on 3 parameters that no module's "
                          "describe() names: "));
  for (const char* part : {"[4] f32", "[4, 4] f32", "field(\"name\", member)"})
    CHECK(contains(message, part));
  // Parameters of another module, which its own describe() names, do not count here.
  nn::Linear teacher(12, 4);
  static_cast<void>(teacher.parameters());
  TrainerCase student;
  optim::Sgd other(student.model.parameters());
  train::Task task = student.task();
  task.loss = [&](const Tensor& y, const Tensor&) { return sum(y) + sum(teacher(ones({1, 12}))); };
  task.metrics.clear();
  Trainer fine(task, other, quiet({.max_steps = 1}));
  fine.fit(trainer_loader());
}

}  // namespace
}  // namespace halftone::test::averages_and_batches_test

// Functions that a task, a metric or a source of tensors lacks: an error names them.

namespace halftone::test::task_functions_test {
namespace {

TEST_CASE("a task without its functions is refused by name") {
  TrainerCase parts;
  train::Task task = parts.task();
  amp::Training training = amp::apply(amp::Policy::named("fp32"), parts.model, parts.adamw);
  const data::Batch batch{zeros({2, 12}), zeros({2}, i64)};
  task.forward = nullptr;
  CHECK(message_of<UsageError>([&] { train::outputs_of(task, training, batch); }) ==
        "[Task] the task has no forward. Give it that function.");
  task.loss = nullptr;
  CHECK(message_of<UsageError>([&] {
          train::loss_of(task, zeros({2, 4}), batch);
        }) == "[Task] the task has no loss. Give it that function.");
}

/// Adds two inputs, so that it is a Module and no Layer.
struct TwoInputs final : nn::Module {
  nn::Linear left{12, 4}, right{12, 4};
  Tensor operator()(const Tensor& a, const Tensor& b) const { return left(a) + right(b); }
  void describe(nn::Fields& field) override { field("left", left), field("right", right); }
};

TEST_CASE("classification and language modeling of a module with two inputs") {
  manual_seed(1);
  TwoInputs model;
  optim::Sgd sgd(model.parameters(), {.lr = 0.5});
  train::Task task = train::classification(model);
  CHECK(!task.forward);
  CHECK(task.metrics.size() == 1);
  CHECK(!train::language_modeling(model).forward);
  task.forward_batch = [&model](const data::Batch& batch) {
    return model(batch.inputs, batch.more.at(0));
  };
  const Tensor a = randn({64, 12}), b = randn({64, 12});
  const Tensor labels = argmax(slice(a + b, 1, 0, 4), -1);
  train::Trainer trainer(task, sgd, quiet({.max_epochs = 30}));
  const data::DataLoader loader(data::TensorDataset({a, b, labels}), {.batch_size = 16});
  CHECK(trainer.fit(loader, loader).metrics.at("val/top1") > 0.9);
}

TEST_CASE("f64 inputs and targets, i32 targets and wrong integers in a Trainer") {
  manual_seed(1);
  const Tensor x = randn({32, 12}), y = randn({32, 4}), labels = argmax(y, -1);
  const auto loss = [&](const Tensor& inputs, const Tensor& targets, bool classes,
                        const char* precision) {
    TrainerCase parts;
    train::Trainer trainer(classes ? train::classification(parts.model)
                                   : train::regression(parts.model, {.mae = true, .r2 = true}),
                           parts.adamw, quiet({.precision = precision, .max_epochs = 1}));
    const data::DataLoader loader(data::TensorDataset(inputs, targets), {.batch_size = 16});
    return trainer.fit(loader, loader).metrics.at("val/loss");
  };
  for (const char* precision : {"32-true", "64-true", "bf16-mixed", "bf16-true"}) {
    CAPTURE(precision);
    const double expected = loss(x, labels, true, precision);
    CHECK(loss(cast(x, f64), labels, true, precision) == expected);
    CHECK(loss(x, cast(labels, i32), true, precision) == expected);
    CHECK(loss(cast(x, f64), cast(y, f64), false, precision) == loss(x, y, false, precision));
  }
  const Tensor whole = cast(y, i64);
  CHECK(loss(x, whole, false, "32-true") == loss(x, cast(whole, f32), false, "32-true"));
  for (const DType dtype : {i64, u8})
    CHECK(message_of<DTypeError>([&] { loss(cast(x, dtype), labels, true, "32-true"); }) ==
          "[Task] the inputs are [16, 12] " + std::string(name(dtype)) +
              ", and the model refuses that: [linear] needs f64, f32, f16 or bf16, got [16, 12] " +
              std::string(name(dtype)) +
              ". Cast it first. Give the dataset cast(inputs, f32), unless they are tokens of an "
              "Embedding.");
}

TEST_CASE("a metric without a function that updates it is refused") {
  using Update = std::function<void(train::RunningMean&, const train::Outcome&)>;
  void (*const pointer)(train::RunningMean&, const train::Outcome&) = nullptr;
  const std::string expected =
      "[TaskMetric] the metric \"m\" has no function that takes a batch in. Give it one.";
  CHECK(message_of<UsageError>([] { train::TaskMetric("m", train::RunningMean(), Update()); }) ==
        expected);
  CHECK(message_of<UsageError>([&] { train::TaskMetric("m", train::RunningMean(), pointer); }) ==
        expected);
  train::TaskMetric("m", train::RunningMean(), [](train::RunningMean&, const train::Outcome&) {});
}

TEST_CASE("a source of tensors without a function is refused, and nothing is written") {
  const TemporaryDirectory directory;
  const TensorSource source{.infos = {{.name = "model.a"}}};
  CHECK(contains(message_of<UsageError>([&] { stream_safetensors(directory / "a", source); }),
                 "[save_safetensors] the source of 1 tensors has no function `tensor`."));
  CHECK(
      contains(message_of<UsageError>([&] { train::save_checkpoint(directory / "b", {}, source); }),
               "[checkpoint] the source of 1 tensors has no function `tensor`."));
  CHECK(names_in(directory.path()).empty());
}

}  // namespace
}  // namespace halftone::test::task_functions_test
