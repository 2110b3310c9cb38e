// Functions that a task, a metric or a source of tensors lacks: an error names them.
#include <doctest/doctest.h>

#include <halftone/train/task_steps.h>

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
