// Contradictory options, and data that does not fit them: the message, and nothing changed.
#include "trainer_cases.h"

#include <cmath>

#include <halftone/train/callbacks.h>
#include <halftone/train/trainer.h>

namespace halftone::test::trainer_options_test {
namespace {

using train::Trainer;
using train::TrainerOptions;

/// Returns the constructor's message; the model must be unchanged.
std::string refused(TrainerOptions options) {
  TrainerCase c;
  const auto before = copy_of(nn::state_dict(c.model));
  const std::string message =
      message_of<UsageError>([&] { Trainer(c.task(), c.adamw, quiet(std::move(options))); });
  CHECK(same_state(nn::state_dict(c.model), before));
  return message;
}

TEST_CASE("Trainer: options that contradict each other") {
  CHECK(refused({.precision = "17-mixed", .max_epochs = 1}) ==
        "[Trainer] there is no precision named \"17-mixed\". Did you mean \"16-mixed\"?");
  CHECK(refused({}) ==
        "[Trainer] nothing ends this training. Pass max_epochs, max_steps or max_time.");
  CHECK(refused({.max_epochs = -1}) == "[Trainer] max_epochs is -1. Use 0 or more.");
  CHECK(refused({.max_epochs = 1, .accumulate_batches = -1}) ==
        "[Trainer] accumulate_batches is -1. Use 0 or more.");
  CHECK(refused({.max_epochs = 1, .clip_norm = -1}) ==
        "[Trainer] clip_norm is -1. Use 0 for none, or a positive number.");
  CHECK(refused({.max_epochs = 1, .clip_norm = 1, .clip_value = 1}) ==
        "[Trainer] clip_norm and clip_value contradict each other. Pass one.");
  CHECK(refused(
            {.precision = "16-mixed", .strategy = amp::Strategy::named("fp32"), .max_epochs = 1}) ==
        "[Trainer] strategy and precision contradict each other. Pass one.");
  CHECK(refused({.fast_dev_run = 1, .overfit_batches = 1}) ==
        "[Trainer] fast_dev_run and overfit_batches contradict each other. Pass one.");
  CHECK(refused({.limit_train_batches = 2, .fast_dev_run = 1}) ==
        "[Trainer] fast_dev_run and limit_train_batches contradict each other. Pass one.");
  CHECK(refused({.max_epochs = 1, .limit_train_batches = 2, .overfit_batches = 1}) ==
        "[Trainer] overfit_batches and limit_train_batches contradict each other. Pass one.");
  CHECK(refused({.max_time = std::chrono::seconds(1),
                 .schedule = [](int64_t n) { return optim::LrSchedule::linear(n); }}) ==
        "[Trainer] a schedule needs to know the number of steps, and max_time alone does not say "
        "it. Pass max_epochs or max_steps as well.");
  CHECK(
      refused({.precision = "o2-fp16", .max_epochs = 1, .clip_value = 1}) ==
      "[Trainer] clip_value needs unscaled gradients, and under o2-fp16 these would be f16, which "
      "underflows. Use clip_norm.");
  CHECK(refused({.max_epochs = 1,
                 .distributed = {.wire = distributed::WireFormat::named("bf16+feedback")},
                 .deterministic = true,
                 .directory = "/tmp"}) ==
        "[Trainer] the wire is bf16+feedback, and what its error feedback keeps is in no "
        "checkpoint, so that a resumed training would get other bits. Leave out deterministic, or "
        "the feedback.");
  CHECK(refused({.max_epochs = 1, .resume = true}) ==
        "[Trainer] resume needs a place for files. Pass directory.");
  CHECK(refused({.max_epochs = 1, .json_lines = true}) ==
        "[Trainer] json_lines needs a place for files. Pass directory.");
  CHECK(refused({.max_epochs = 1, .tensorboard = true}) ==
        "[Trainer] tensorboard needs a place for files. Pass directory.");
  CHECK(refused({.max_epochs = 1, .checkpoints = {.keep_last = 0}}) ==
        "[Trainer] checkpoints.keep_last is 0. Use 1 or more.");
  CHECK(
      refused(
          {.max_epochs = 1, .directory = "none", .checkpoints = {.keep_best = 1}, .monitor = ""}) ==
      "[Trainer] checkpoints.keep_best is 1, but monitor is empty. Name a metric, such as "
      "\"val/loss\".");
  TrainerCase c;
  CHECK(message_of<UsageError>(
            [&] { Trainer(c.task(), c.adamw, {.max_epochs = 1, .output = nullptr}); }) ==
        "[Trainer] output is null. Leave it stdout, or turn progress_bar and model_summary off.");
  CHECK(refused({.max_epochs = 1, .output = nullptr}).empty());  // nothing is shown
  CHECK(refused({.limit_validation_batches = 1, .fast_dev_run = 1}) ==
        "[Trainer] fast_dev_run and limit_validation_batches contradict each other. Pass one.");
  CHECK(refused({.max_epochs = 1, .limit_validation_batches = 1, .overfit_batches = 1}) ==
        "[Trainer] overfit_batches and limit_validation_batches contradict each other. Pass one.");
  CHECK(refused({.max_epochs = 1, .checkpoints = {.every_steps = 5}}) ==
        "[Trainer] checkpoints needs a place for files. Pass directory.");
  CHECK(refused({.max_time = std::chrono::seconds(-1)}) ==
        "[Trainer] max_time is -1. Use 0 for none, or a positive number.");
  CHECK(refused({.max_epochs = 1, .clip_value = std::nan("")}) ==
        "[Trainer] clip_value is nan. Use 0 for none, or a positive number.");
  CHECK(refused({.max_epochs = 1, .callbacks = {nullptr}}) ==
        "[Trainer] a callback is null. Leave it out.");
  CHECK(refused({.max_epochs = 1, .loggers = {nullptr}}) ==
        "[Trainer] a logger is null. Leave it out.");
}

TEST_CASE("Trainer: tasks that lack something, and names that are taken") {
  TrainerCase c;
  const auto made = [&](const train::Task& task) {
    return message_of<UsageError>([&] { Trainer(task, c.adamw, quiet({.max_epochs = 1})); });
  };
  train::Task task{.model = c.model};
  CHECK(made(task) == "[Trainer] the task has no forward. Give it that function.");
  task.forward = [](const Tensor& x) { return x; };
  CHECK(made(task) == "[Trainer] the task has no loss. Give it that function.");
  CHECK(made(train::classification(c.model, {.top_k = {1, 1}})) ==
        "[Trainer] no second metric can be named \"top1\". Choose another name.");
}

TEST_CASE("Trainer: data that does not fit the options") {
  const auto refused = [](const TrainerOptions& options, const data::DataLoader& loader) {
    TrainerRun run(options);
    return message_of<Error>([&] { run.trainer.fit(loader); });
  };
  CHECK(refused({.max_epochs = 1}, trainer_loader({.batch_size = 100, .drop_last = true})) ==
        "[Trainer] the training loader has no batch: 72 samples, batch_size 100. Turn drop_last "
        "off, or make batches smaller.");
  TrainerRun blind({.max_epochs = 1});
  CHECK(message_of<UsageError>([&] {
          blind.trainer.fit(trainer_loader(),
                            trainer_loader({.batch_size = 100, .drop_last = true}));
        }) ==
        "[Trainer] the validation loader has no batch: 72 samples, batch_size 100. Turn drop_last "
        "off, or make batches smaller.");
  CHECK(refused({.max_epochs = 1, .validate_every_steps = 2}, trainer_loader()) ==
        "[Trainer] validate_every_steps needs something to validate on, and a time for it. Pass "
        "fit() a second loader, and validate_every_epochs or validate_every_steps.");
  const TemporaryDirectory directory;
  CHECK(contains(
      refused({.max_epochs = 1, .directory = directory.path(), .checkpoints = {.keep_best = 2}},
              trainer_loader()),
      "[Trainer] checkpoints.keep_best by val/loss needs something to validate on, and "));
  CHECK(refused({.max_epochs = 1}, trainer_loader({.device = Device::cuda(0)})) ==
        "[Trainer] the model is on cpu, the training loader delivers to cuda:0. Give it {.device = "
        "...}, or move the model.");
}

TEST_CASE("callbacks refuse numbers out of range, and unknown metrics") {
  CHECK(message_of<UsageError>([] { train::EarlyStopping({.patience = 0}); }) ==
        "[EarlyStopping] patience is 0. Use 1 or more.");
  CHECK(message_of<UsageError>([] { train::EarlyStopping({.min_delta = -1}); }) ==
        "[EarlyStopping] min_delta is -1. Use 0 or more.");
  CHECK(message_of<UsageError>([] { train::NanPolicy({.every_batches = 0}); }) ==
        "[NanPolicy] patience 10, every_batches 0. Use 1 or more of each.");
  CHECK(message_of<UsageError>([] { train::NanPolicy({.patience = 0}); }) ==
        "[NanPolicy] patience 0, every_batches 1. Use 1 or more of each.");
  const auto stopping =
      std::make_shared<train::EarlyStopping>(train::EarlyStoppingOptions{.metric = "val/los"});
  TrainerRun run({.max_epochs = 1, .callbacks = {stopping}});
  CHECK(message_of<UsageError>([&] { run.trainer.fit(trainer_loader(), trainer_loader()); }) ==
        "[Trainer] there is no metric named \"val/los\". Did you mean \"val/loss\"?");
}

TEST_CASE("Trainer: portable bits are chosen by valid options, and are part of the environment") {
  const PortableBitsScope scope(false);
  CHECK(contains(train::environment_of(Device::cpu()), " threads"));
  CHECK(refused({.max_epochs = -1, .portable_bits = true}) ==
        "[Trainer] max_epochs is -1. Use 0 or more.");
  CHECK_FALSE(portable_bits());
  TrainerCase c;
  const Trainer trainer(c.task(), c.adamw, quiet({.max_epochs = 1, .portable_bits = true}));
  CHECK(portable_bits());
  const std::string environment = train::environment_of(Device::cpu());
  CHECK_FALSE(contains(environment, "threads"));
  if (backend_for(Device::cpu()).name() == "cpu")
    CHECK(contains(environment, ", cpu: portable bits"));
}

}  // namespace
}  // namespace halftone::test::trainer_options_test
