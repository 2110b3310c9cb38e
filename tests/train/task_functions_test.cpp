// Functions that a task, a metric or a source of tensors lacks: an error names them.
#include <doctest/doctest.h>

#include <halftone/train/task.h>

#include "checkpoint_cases.h"
#include "trainer_cases.h"

namespace halftone::test::task_functions_test {
namespace {

TEST_CASE("a task without its functions is refused by name") {
  TrainerCase parts;
  train::Task task = parts.task();
  amp::Training training = amp::apply(amp::Strategy::named("fp32"), parts.model, parts.adamw);
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
