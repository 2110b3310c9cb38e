// A Trainer that was stopped and started again: the same bits, under every strategy; and whom it
// refuses.
#include "trainer_cases.h"

#include <signal.h>
#include <unistd.h>

#include <halftone/train/checkpoints.h>
#include <halftone/train/early_stopping.h>
#include <halftone/train/environment.h>

namespace halftone::testing {
namespace {

namespace fs = std::filesystem;
using train::Trainer;
using train::TrainerOptions;

constexpr int64_t last_step = 14;  // of epochs of 5 steps

TrainerOptions saving(const fs::path& directory, std::string precision, int64_t max_steps) {
  return {.precision = std::move(precision),
          .max_steps = max_steps,
          .schedule = [](int64_t) { return optim::LrSchedule::cosine(last_step); },
          .directory = directory,
          .checkpoints = {.every_steps = 1, .keep_last = 2},
          .resume = true,
          .csv = false};
}

TEST_CASE("Trainer: resumed in the middle of an epoch, the same bits, under every strategy") {
  for (const std::string_view name : amp::Strategy::names()) {
    CAPTURE(name);
    const std::string precision(name);
    const TemporaryDirectory directory;
    TrainerRun whole(saving(directory / "whole", precision, last_step));
    const auto expected = whole.trainer.fit(trainer_loader(), trainer_loader());
    {
      TrainerRun first(saving(directory / "parts", precision, 8));
      first.trainer.fit(trainer_loader(), trainer_loader());
    }
    // Other weights, another generator: all of it must come back.
    TrainerRun second(saving(directory / "parts", precision, last_step), 55);
    const auto result = second.trainer.fit(trainer_loader(), trainer_loader());
    CHECK(result.steps == last_step);
    CHECK(result.metrics == expected.metrics);  // running means of the epoch, too
    CHECK(same_state(second.state(), whole.state()));
    CHECK(train::valid_checkpoints(directory / "parts/checkpoints").size() == 2);
  }
}

TEST_CASE("Trainer: a finished training that is resumed ends at once with what it had") {
  const TemporaryDirectory directory;
  TrainerRun first(saving(directory.path(), "32-true", 10));
  const auto before = first.trainer.fit(trainer_loader(), trainer_loader());
  TrainerRun second(saving(directory.path(), "32-true", 10), 55);
  const auto after = second.trainer.fit(trainer_loader(), trainer_loader());
  CHECK(after.steps == 10);
  CHECK(after.metrics == before.metrics);
  CHECK(same_state(first.state(), second.state()));
}

TEST_CASE("Trainer: a damaged newest checkpoint is passed over, left alone, and replaced") {
  const TemporaryDirectory directory;
  TrainerRun whole(saving(directory / "whole", "32-true", last_step));
  whole.trainer.fit(trainer_loader());
  {
    TrainerRun first(saving(directory / "torn", "32-true", 8));
    first.trainer.fit(trainer_loader());
  }
  const fs::path torn = directory / "torn/checkpoints" / train::checkpoint_name(8);
  fs::resize_file(torn / "model.safetensors", fs::file_size(torn / "model.safetensors") / 2);
  TrainerRun second(saving(directory / "torn", "32-true", last_step), 55);
  CHECK(second.trainer.fit(trainer_loader()).steps == last_step);
  CHECK(same_state(second.state(), whole.state()));
}

TEST_CASE("Trainer: keeps the last and the best by what was measured at their very weights") {
  const TemporaryDirectory directory;
  TrainerRun run({.max_epochs = 6,
                  .directory = directory.path(),
                  .checkpoints = {.every_steps = 2, .keep_last = 2, .keep_best = 2}});
  std::vector<std::pair<double, int64_t>> measured;
  run.trainer.fit(trainer_loader(), trainer_loader());
  for (const auto& found : train::valid_checkpoints(directory / "checkpoints")) {
    const auto metric = found.state.numbers.find("val/loss");
    if (metric != found.state.numbers.end()) {
      CHECK(found.state.batches == 0);
      measured.emplace_back(metric->second, found.state.step);
    }
  }
  CHECK(measured.size() >= 2);
  CHECK(fs::exists(directory / "metrics.csv"));
}

TEST_CASE("Trainer: early stopping counts on over a restart") {
  const auto fit = [](const fs::path& directory, int64_t epochs) {
    const auto stopping = std::make_shared<train::EarlyStopping>(
        train::EarlyStoppingOptions{.patience = 3, .min_delta = 1e9});
    TrainerOptions options = saving(directory, "32-true", 0);
    options.max_epochs = epochs, options.callbacks = {stopping};
    return TrainerRun(options).trainer.fit(trainer_loader(), trainer_loader());
  };
  const TemporaryDirectory directory;
  // The first validation is better than nothing, three are not better by 1e9.
  CHECK(fit(directory / "whole", 100).epochs == 4);
  CHECK(fit(directory / "parts", 2).reason == "max_epochs is reached");
  const auto result = fit(directory / "parts", 100);
  CHECK(result.epochs == 4);
  CHECK(result.reason == "val/loss has not improved for 3 validations");
}

TEST_CASE("Trainer: after a signal the step is finished and saved") {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TemporaryDirectory directory;
    const auto hooks = std::make_shared<Hooks>();
    TrainerOptions options = saving(directory.path(), "16-mixed", last_step);
    options.checkpoints = {.every_epochs = 0};
    options.callbacks = {hooks}, options.exit_on_signal = false;
    hooks->batch = [&](data::Batch&) {
      static int batches = 0;
      if (++batches % 7 == 0) kill(getpid(), signal);
    };
    struct sigaction before {};
    sigaction(signal, nullptr, &before);
    TrainerRun run(options);
    const auto result = run.trainer.fit(trainer_loader());
    CHECK(result.signal == signal);
    CHECK(result.steps == 7);
    const auto latest = train::latest_checkpoint(directory / "checkpoints");
    REQUIRE(latest.has_value());
    CHECK(latest->state.step == 7);
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    CHECK((now.sa_handler == before.sa_handler));
  }
}

/// What fit() says to a training that resumes another one.
std::string refused(const fs::path& directory, const TrainerOptions& options,
                    data::DataLoader loader = trainer_loader(), int64_t width = 20) {
  TrainerRun run(options, 1, width);
  const auto before = run.state();
  const std::string message = message_of<Error>([&] { run.trainer.fit(loader); });
  CHECK(same_state(run.state(), before));
  CHECK(train::latest_checkpoint(directory / "checkpoints")->state.step == 8);
  return message;
}

TEST_CASE("Trainer: refuses what does not belong to it, and nothing is lost") {
  const TemporaryDirectory directory;
  const fs::path here = directory / "run";
  {
    TrainerRun first(saving(here, "32-true", 8));
    first.trainer.fit(trainer_loader());
  }
  TrainerOptions options = saving(here, "32-true", last_step);
  CHECK(contains(refused(here, saving(here, "bf16-true", last_step)), "fp32"));
  CHECK(contains(refused(here, options, trainer_loader(), 21), "[21, 12]"));
  CHECK(contains(refused(here, options, trainer_loader({.batch_size = 8})),
                 "in the middle of an epoch of 72 samples in batches of 16; this loader has 72 in "
                 "batches of 8. Resume with the loader of that training."));
  TrainerOptions without = options;
  without.schedule = nullptr;
  CHECK(contains(refused(here, without), "schedule"));
  TrainerOptions fresh = options;
  fresh.resume = false;
  CHECK(contains(refused(here, fresh),
                 "holds the checkpoints of an earlier training. Pass "
                 ".resume = true to go on with it, or name another"));

  // The checkpoint of another machine.
  auto foreign = train::load_checkpoint(here / "checkpoints" / train::checkpoint_name(8));
  foreign.state.texts["environment"] = "a machine far away";
  train::remove_checkpoint(here / "checkpoints" / train::checkpoint_name(8));
  train::save_checkpoint(here / "checkpoints" / train::checkpoint_name(8), foreign);
  options.deterministic = true;
  CHECK(contains(refused(here, options), "the checkpoint is of \"a machine far away\", here is \"" +
                                             train::environment_of(Device::cpu())));
  options.deterministic = false;
  TrainerRun elsewhere(options);
  CHECK(elsewhere.trainer.fit(trainer_loader()).steps == last_step);
}

TEST_CASE("Trainer: directories that cannot be made, and such that hold no checkpoint") {
  const TemporaryDirectory directory;
  write_file(directory / "file", "x");
  TrainerRun taken(saving(directory / "file", "32-true", 3));
  CHECK(contains(message_of<FormatError>([&] { taken.trainer.fit(trainer_loader()); }),
                 "[Trainer] cannot make the directory "));
  CHECK(read_file(directory / "file") == "x");

  fs::create_directories(directory / "run/checkpoints/step-000000003");
  write_file(directory / "run/checkpoints/step-000000003/notes.txt", "mine");
  TrainerRun run(saving(directory / "run", "32-true", 3));
  CHECK(run.trainer.fit(trainer_loader()).steps == 3);
  CHECK(read_file(directory / "run/checkpoints/step-000000003/notes.txt") == "mine");
  CHECK(fs::exists(directory / "run/checkpoints/step-000000003-2/manifest.json"));
}

}  // namespace
}  // namespace halftone::testing
