// A Trainer that was stopped and started again: the same bits, under every strategy; and the
// trainings that it refuses to resume.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>

#include <omp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <halftone/halftone.h>

#include "../support.h"
#include "trainer_cases.h"

namespace halftone::test::trainer_resume_test {
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
  for (const std::string_view name : amp::Policy::names()) {
    CAPTURE(name);
    const std::string precision(name);
    const TemporaryDirectory directory;
    TrainerRun whole(saving(directory / "whole", precision, last_step));
    const auto expected = whole.trainer.fit(trainer_loader(), trainer_loader());
    {
      TrainerRun first(saving(directory / "parts", precision, 8));
      first.trainer.fit(trainer_loader(), trainer_loader());
    }
    // Other weights, another generator: all must be restored.
    TrainerRun second(saving(directory / "parts", precision, last_step), 55);
    const auto result = second.trainer.fit(trainer_loader(), trainer_loader());
    CHECK(result.steps == last_step);
    CHECK(result.metrics == expected.metrics);  // also running means of the epoch
    CHECK(same_state(second.state(), whole.state()));
    CHECK(train::valid_checkpoints(directory / "parts/checkpoints").size() == 2);
  }
}

TEST_CASE("Trainer: a loader that drew its seed resumes with the one of the checkpoint") {
  const TemporaryDirectory directory;
  const data::DataLoaderOptions unseeded{.batch_size = 16, .shuffle = true};
  TrainerRun whole(saving(directory / "whole", "32-true", last_step));
  whole.trainer.fit(trainer_loader(unseeded));
  {
    TrainerRun first(saving(directory / "parts", "32-true", 8));
    first.trainer.fit(trainer_loader(unseeded));
  }
  TrainerRun second(saving(directory / "parts", "32-true", last_step), 55);
  second.trainer.fit(trainer_loader(unseeded));  // draws another one
  CHECK(same_state(second.state(), whole.state()));
  // The same in one process; an explicit seed is not replaced.
  TrainerRun parts(saving(directory / "process", "32-true", 8));
  parts.trainer.fit(trainer_loader(unseeded));
  TrainerRun given(saving(directory / "process", "32-true", last_step));
  CHECK_THROWS_AS(given.trainer.fit(trainer_loader({.batch_size = 16, .shuffle = true, .seed = 5})),
                  UsageError);
}

TEST_CASE("Trainer: a finished training that is resumed ends at once with its earlier result") {
  const TemporaryDirectory directory;
  TrainerRun first(saving(directory.path(), "32-true", 10));
  const auto before = first.trainer.fit(trainer_loader(), trainer_loader());
  TrainerRun second(saving(directory.path(), "32-true", 10), 55);
  const auto after = second.trainer.fit(trainer_loader(), trainer_loader());
  CHECK(after.steps == 10);
  CHECK(after.metrics == before.metrics);
  CHECK(same_state(first.state(), second.state()));
}

TEST_CASE("Trainer: a damaged newest checkpoint is skipped, not changed, and replaced") {
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

TEST_CASE("Trainer: keeps the last and the best by the metrics of exactly their weights") {
  for (const bool larger : {false, true}) {
    const TemporaryDirectory directory;
    const auto hooks = std::make_shared<Hooks>();
    std::vector<std::pair<double, int64_t>> scores;
    const double values[] = {3, 1, 5, 2, 4, 6};
    hooks->validation_end = [&](Trainer& trainer) {
      scores.emplace_back(values[scores.size()], trainer.position().step);
      trainer.log("val/score", scores.back().first);
    };
    TrainerRun run({.max_epochs = 6,
                    .directory = directory.path(),
                    .checkpoints = {.every_steps = 2, .keep_last = 2, .keep_best = 2},
                    .monitor = "val/score",
                    .larger_is_better = larger,
                    .callbacks = {hooks}});
    const train::FitResult result = run.trainer.fit(trainer_loader(), trainer_loader());
    const fs::path root = directory / "checkpoints";
    CHECK(result.best_checkpoint == root / train::checkpoint_name(larger ? 30 : 10));
    CHECK(fs::read_symlink(root / "best") == result.best_checkpoint.filename());
    TrainerCase loaded(5);
    nn::load(loaded.model, root / "best" / "model.safetensors");
    CHECK(train::valid_checkpoints(root).size() == (larger ? 3 : 4));  // the link is none of them
    CHECK(train::damaged_checkpoints(root).empty());
    CHECK_THROWS_AS(train::remove_checkpoint(root / "best"), UsageError);
    std::set<int64_t> kept;
    for (const auto& found : train::valid_checkpoints(directory / "checkpoints"))
      kept.insert(found.state.step);
    // Epochs of 5 steps; the last are 28 and 30, the best of epochs 2 and 4, or of 3 and 6.
    CHECK(kept == (larger ? std::set<int64_t>{15, 28, 30} : std::set<int64_t>{10, 20, 28, 30}));
    CHECK(fs::exists(directory / "metrics.csv"));
  }
  const TemporaryDirectory directory;
  TrainerRun run({.max_epochs = 2,
                  .directory = directory.path(),
                  .checkpoints = {.keep_best = 1},
                  .monitor = "val/los"});
  CHECK(message_of<UsageError>([&] { run.trainer.fit(trainer_loader(), trainer_loader()); }) ==
        "[Trainer] there is no metric named \"val/los\". Did you mean \"val/loss\"?");
}

TEST_CASE("Trainer: a refused start changes nothing, and can be repeated") {
  const TemporaryDirectory directory;
  const fs::path here = directory / "run";
  {
    TrainerRun first(saving(here, "32-true", 8));
    first.trainer.fit(trainer_loader());
  }
  TrainerRun run(saving(here, "32-true", last_step), 55);
  CHECK_THROWS_AS(run.trainer.fit(trainer_loader({.batch_size = 8})), UsageError);
  CHECK(run.parts.adamw.lr() == 1e-2);
  CHECK(run.trainer.fit(trainer_loader()).steps == last_step);  // resumed, not begun
  TrainerRun whole(saving(directory / "whole", "32-true", last_step));
  whole.trainer.fit(trainer_loader());
  CHECK(same_state(run.state(), whole.state()));

  TrainerOptions fresh = saving(here, "32-true", 3);
  fresh.resume = false;
  TrainerRun other(fresh);
  for (int i = 0; i < 2; ++i) CHECK_THROWS_AS(other.trainer.fit(trainer_loader()), UsageError);
  CHECK(train::latest_checkpoint(here / "checkpoints")->state.step == last_step);
}

TEST_CASE("Trainer: all metrics survive a restart, from every step") {
  const TemporaryDirectory directory;
  const auto fit = [&](const char* name, int64_t steps) {
    TrainerOptions options = saving(directory / name, "32-true", steps);
    options.validate_every_steps = 7, options.log_every_steps = 6;
    return TrainerRun(options).trainer.fit(trainer_loader(), trainer_loader()).metrics;
  };
  const auto whole = fit("whole", 13);
  fit("parts", 8);
  CHECK(fit("parts", 13) == whole);
  CHECK(fit("parts", 13) == whole);
  CHECK(whole.contains("train/loss"));
}

TEST_CASE("Trainer: a lower limit closes the epoch in which a resumed run is") {
  const TemporaryDirectory directory;
  {
    TrainerRun first(saving(directory.path(), "32-true", 3));
    first.trainer.fit(trainer_loader());
  }
  TrainerOptions options = saving(directory.path(), "32-true", 7);
  options.limit_train_batches = 2;
  std::vector<int64_t> epochs;
  const auto hooks = std::make_shared<Hooks>();
  hooks->step_end = [&](Trainer& trainer) { epochs.push_back(trainer.position().epoch); };
  options.callbacks = {hooks};
  const auto result = TrainerRun(options).trainer.fit(trainer_loader());
  CHECK(result.steps == 7);
  CHECK(epochs == std::vector<int64_t>{1, 2, 2, 3});
}

TEST_CASE("Trainer: a signal interrupts a validation, and the next run repeats it") {
  const TemporaryDirectory directory;
  const auto stopped = std::make_shared<Hooks>();
  TrainerOptions options = saving(directory.path(), "32-true", last_step);
  options.exit_on_signal = false, options.callbacks = {stopped};
  int64_t forward_passes = 0;
  TrainerCase c;
  train::Task task = c.task();
  task.forward = [&](const Tensor& x) {
    if (!grad_enabled() && ++forward_passes == 5) kill(getpid(), SIGTERM);  // 2 of the sanity check
    return c.model(x);
  };
  Trainer trainer(task, c.adamw, quiet(options));
  const auto result = trainer.fit(trainer_loader(), trainer_loader());
  CHECK(result.signal == SIGTERM);
  CHECK(result.steps == 5);
  CHECK(forward_passes == 5);  // of 2 + 5
  CHECK_FALSE(result.metrics.contains("val/loss"));

  std::vector<int64_t> validated;
  const auto hooks = std::make_shared<Hooks>();
  hooks->validation_end = [&](Trainer& t) { validated.push_back(t.position().step); };
  options.callbacks = {hooks};
  TrainerRun(options).trainer.fit(trainer_loader(), trainer_loader());
  CHECK(validated == std::vector<int64_t>{5, 10});
}

TEST_CASE("Trainer: max_time includes the earlier runs, not the time between them") {
  const TemporaryDirectory directory;
  TrainerRun first(saving(directory.path(), "32-true", 5));
  CHECK(first.trainer.fit(trainer_loader()).seconds < 60);
  first.trainer.save(directory / "checkpoints/again");
  const auto saved = train::read_checkpoint_state(directory / "checkpoints/again");
  CHECK(saved.numbers.at("state.seconds") < 60);
  TrainerOptions options = saving(directory.path(), "32-true", last_step);
  options.max_time = std::chrono::duration<double>(saved.numbers.at("state.seconds") / 2);
  const auto result = TrainerRun(options).trainer.fit(trainer_loader());
  CHECK(result.steps == 5);
  CHECK(result.reason == "max_time is over");
}

TEST_CASE("Trainer: early stopping continues its count over a restart") {
  const auto fit = [](const fs::path& directory, int64_t epochs) {
    const auto stopping = std::make_shared<train::EarlyStopping>(
        train::EarlyStoppingOptions{.patience = 3, .min_delta = 1e9});
    TrainerOptions options = saving(directory, "32-true", 0);
    options.max_epochs = epochs, options.callbacks = {stopping};
    return TrainerRun(options).trainer.fit(trainer_loader(), trainer_loader());
  };
  const TemporaryDirectory directory;
  // The first validation is better than none, three are not better by 1e9.
  CHECK(fit(directory / "whole", 100).epochs == 4);
  CHECK(fit(directory / "parts", 2).reason == "max_epochs is reached");
  const auto result = fit(directory / "parts", 100);
  CHECK(result.epochs == 4);
  CHECK(result.reason == "val/loss has not improved for 3 validations");
}

/// Returns the message of fit() for a training that resumes another one.
std::string refused(const fs::path& directory, const TrainerOptions& options,
                    data::DataLoader loader = trainer_loader(), int64_t width = 20) {
  TrainerRun run(options, 1, width);
  const auto before = run.state();
  const std::string message = message_of<Error>([&] { run.trainer.fit(loader); });
  CHECK(same_state(run.state(), before));
  CHECK(train::latest_checkpoint(directory / "checkpoints")->state.step == 8);
  return message;
}

TEST_CASE("Trainer: refuses checkpoints that do not belong to it, and nothing is lost") {
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
                 "[Trainer] the training is in the middle of an epoch whose batch_size is 16; "
                 "that of this loader is 8. Go on with the loader that it had."));
  for (const data::DataLoaderOptions& other :
       {data::DataLoaderOptions{.batch_size = 16, .shuffle = true, .seed = 4},
        data::DataLoaderOptions{.batch_size = 16, .seed = 3},
        data::DataLoaderOptions{.batch_size = 16, .shuffle = true, .drop_last = true, .seed = 3}})
    CHECK(contains(refused(here, options, trainer_loader(other)), "Go on with the loader"));
  TrainerOptions without = options;
  without.schedule = nullptr;
  CHECK(contains(refused(here, without), "schedule"));
  TrainerOptions fresh = options;
  fresh.resume = false;
  CHECK(contains(refused(here, fresh),
                 "holds the checkpoints of an earlier training. Pass "
                 ".resume = true to go on with it, .set_aside = true to move it to "));

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

TEST_CASE("Trainer: directories that cannot be made, and directories without a checkpoint") {
  const TemporaryDirectory directory;
  write_file(directory / "file", "x");
  TrainerRun taken(saving(directory / "file", "32-true", 3));
  CHECK(contains(message_of<FormatError>([&] { taken.trainer.fit(trainer_loader()); }),
                 "[Trainer] cannot make the directory "));
  fs::create_directories(directory / "half");
  write_file(directory / "half/checkpoints", "x");
  TrainerRun half(saving(directory / "half", "32-true", 3));
  CHECK(contains(message_of<FormatError>([&] { half.trainer.fit(trainer_loader()); }),
                 "checkpoints: Not a directory. Name one that can be made."));
  CHECK(read_file(directory / "file") == "x");

  fs::create_directories(directory / "run/checkpoints/step-000000003");
  write_file(directory / "run/checkpoints/step-000000003/notes.txt", "mine");
  TrainerRun run(saving(directory / "run", "32-true", 3));
  CHECK(run.trainer.fit(trainer_loader()).steps == 3);
  CHECK(read_file(directory / "run/checkpoints/step-000000003/notes.txt") == "mine");
  CHECK(fs::exists(directory / "run/checkpoints/step-000000003-2/manifest.json"));
}

}  // namespace
}  // namespace halftone::test::trainer_resume_test

// The Trainer's directory: damage that it refuses or sets aside, options that have changed, missing
// permissions; and the note when a signal ends a training.

namespace halftone::test::trainer_directory_test {
namespace {

namespace fs = std::filesystem;
using train::TrainerOptions;

TrainerOptions saving(const fs::path& directory, int64_t max_steps) {
  return {.max_steps = max_steps,
          .directory = directory,
          .checkpoints = {.every_steps = 2, .keep_last = 2},
          .resume = true,
          .json_lines = true,
          .log_every_steps = 1};
}

/// A training whose every note is in `said`.
std::string said(TrainerOptions options, const optim::AdamWOptions& adam = {.lr = 1e-2},
                 const data::DataLoader& loader = trainer_loader(),
                 train::FitResult* result = nullptr) {
  const TemporaryDirectory directory;
  std::FILE* const file = std::fopen((directory / "out").c_str(), "w");
  options.output = file, options.model_summary = false;
  TrainerCase c;
  optim::AdamW adamw(c.model.parameters(), adam);
  const train::FitResult ended = train::Trainer(c.task(), adamw, options).fit(loader, loader);
  if (result) *result = ended;
  std::fclose(file);
  return read_file(directory / "out");
}

TEST_CASE("Trainer: if every checkpoint is damaged it refuses, says why, and can start over") {
  const TemporaryDirectory directory;
  const fs::path here = directory.path(), root = here / "checkpoints";
  TrainerRun(saving(here, 4)).trainer.fit(trainer_loader());
  const std::string log = read_file(here / "metrics.csv");
  damage(root / "step-000000002");
  fs::remove(root / "step-000000004/manifest.json");
  TrainerRun refused(saving(here, 4), 55);
  const auto before = refused.state();
  const std::string message =
      message_of<FormatError>([&] { refused.trainer.fit(trainer_loader()); });
  CHECK(contains(message, "[Trainer] there is no valid checkpoint in " + root.string() +
                              ": step-000000004: cannot open "));
  CHECK(contains(message, "; step-000000002: the checksum of " +
                              (root / "step-000000002/model.safetensors").string() +
                              " is not that of its manifest. "));
  CHECK(contains(message, "pass .set_aside = true, which moves what is there to " +
                              (here / "old-1").string()));
  CHECK(same_state(refused.state(), before));
  CHECK(read_file(here / "metrics.csv") == log);

  write_file(here / "mine.txt", "mine");
  TrainerOptions over = saving(here, 3);
  over.set_aside = true;
  CHECK(contains(said(over), "is now in " + (here / "old-1").string() + '\n'));
  CHECK(read_file(here / "old-1/metrics.csv") == log);
  CHECK(fs::exists(here / "old-1/metrics.jsonl"));
  CHECK(fs::exists(here / "old-1/checkpoints/step-000000004/state.json"));
  CHECK(read_file(here / "mine.txt") == "mine");
  CHECK(train::latest_checkpoint(root)->state.step == 3);
  const std::string anew = read_file(here / "metrics.csv");
  CHECK(std::count(anew.begin(), anew.end(), '\n') == 1 + 3);

  // An undamaged checkpoint is resumed and stays; without resume it is set aside in any case.
  over.max_steps = 5;
  CHECK(contains(said(over), "resumed after step 3"));
  over.resume = false;
  said(over);
  CHECK(fs::exists(here / "old-2/checkpoints/step-000000005"));
  CHECK_FALSE(fs::exists(here / "old-3"));
  over.set_aside = false;
  CHECK(contains(message_of<UsageError>([&] { said(over); }),
                 ".set_aside = true to move it to " + (here / "old-3").string()));
}

TEST_CASE("Trainer: a user's copy of a checkpoint stays") {
  const TemporaryDirectory directory;
  const auto hooks = std::make_shared<Hooks>();
  hooks->step_end = [&](train::Trainer& trainer) {
    if (trainer.position().step == 3)
      fs::copy(directory / "checkpoints/step-000000002", directory / "checkpoints/my best",
               fs::copy_options::recursive);
  };
  TrainerOptions options = saving(directory.path(), 9);
  options.callbacks = {hooks};
  TrainerRun(options).trainer.fit(trainer_loader());
  CHECK(train::verify_checkpoint(directory / "checkpoints/my best").step == 2);
  CHECK(train::valid_checkpoints(directory / "checkpoints").size() == 3);
}

TEST_CASE("Trainer: differences between checkpoint and program are noted, with both numbers") {
  const TemporaryDirectory directory;
  CHECK_FALSE(contains(said(saving(directory.path(), 5)), "checkpoint"));  // one epoch
  const std::string same = said(saving(directory.path(), 5));
  CHECK(contains(same, "resumed after step 5"));
  CHECK_FALSE(contains(same, "which counts"));
  const std::string changed =
      said(saving(directory.path(), 10), {.lr = 0.25, .betas = {0.5, 0.999}, .weight_decay = 0.5},
           trainer_loader({.batch_size = 8, .shuffle = true, .seed = 3}));
  CHECK(contains(changed, "lr is 0.01 in the checkpoint, which counts, and 0.25 in the program"));
  CHECK(contains(changed, "weight_decay is 0.01 in the checkpoint, which counts, and 0.5 in"));
  CHECK(contains(changed, "betas is 0.9, 0.999 in the checkpoint, which counts, and 0.5, 0.999"));
  CHECK_FALSE(contains(changed, "eps is"));
  CHECK(contains(changed, "the loader's batch_size is 8 from now on; it was 16"));
  CHECK_FALSE(contains(changed, "loader's seed"));

  // Under a schedule it is the rate that the schedule multiplies.
  const TemporaryDirectory other;
  TrainerOptions scheduled = saving(other.path(), 5);
  scheduled.schedule = [](int64_t) { return optim::LrSchedule::cosine(10); };
  said(scheduled);
  scheduled.max_steps = 10;
  CHECK_FALSE(contains(said(scheduled), "which counts"));
  CHECK(contains(said(scheduled, {.lr = 0.5}),
                 "lr is 0.01 in the checkpoint, which counts, and 0.5"));
}

TEST_CASE("Trainer: files without permission are an error of the library") {
  const TemporaryDirectory directory;
  const fs::path here = directory / "run";
  TrainerRun(saving(here, 4)).trainer.fit(trainer_loader());
  const WithoutRoot without_root(directory.path());
  const auto message = [&](const TrainerOptions& options) {
    TrainerRun run(options);
    return message_of<FormatError>([&] { run.trainer.fit(trainer_loader()); });
  };
  for (const mode_t mode : {0, 0111, 0444}) {
    CAPTURE(mode);
    REQUIRE(chmod((here / "checkpoints").c_str(), mode) == 0);
    TrainerOptions options = saving(here, 6);
    CHECK(contains(message(options), "Permission denied"));
    options.resume = false;
    if (mode != 0444)
      CHECK(contains(message(options), "[Trainer] cannot list " + (here / "checkpoints").string()));
  }
  REQUIRE(chmod((here / "checkpoints").c_str(), 0755) == 0);
  REQUIRE(chmod(here.c_str(), 0555) == 0);
  fs::permissions(here / ".lock", fs::perms::owner_read);
  CHECK(contains(message(saving(here, 6)), "Permission denied"));
  CHECK(contains(message(saving(here / "deeper", 6)), "cannot make the directory"));
  REQUIRE(chmod(here.c_str(), 0) == 0);
  CHECK(contains(message(saving(here, 6)), "Permission denied"));
  CHECK(contains(message_of<FormatError>([&] { train::TensorBoardLogger log(here / "board"); }),
                 "Permission denied"));
  REQUIRE(chmod(here.c_str(), 0755) == 0);
}

TEST_CASE("Trainer: after a signal the step is finished and saved, and a note says where") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const TemporaryDirectory directory;
    TrainerOptions options = saving(directory.path(), 9);
    options.precision = "16-mixed", options.exit_on_signal = false;
    options.checkpoints = {.every_epochs = 0};
    const auto hooks = std::make_shared<Hooks>();
    hooks->batch = [&, batches = 0](data::Batch&) mutable {
      if (++batches % 3 == 0) kill(getpid(), signal);
    };
    options.callbacks = {hooks};
    struct sigaction before {
    }, now{};
    sigaction(signal, nullptr, &before);
    train::FitResult result;
    const std::string text = said(options, {.lr = 1e-2}, trainer_loader(), &result);
    sigaction(signal, nullptr, &now);
    CHECK((now.sa_handler == before.sa_handler));
    CHECK(result.signal == signal);
    CHECK(result.steps == 3);
    const fs::path saved = directory / "checkpoints/step-000000003";
    CHECK(train::verify_checkpoint(saved).step == 3);
    CHECK(contains(text, ": saved " + saved.string() + '\n'));
    CHECK(contains(text, signal == SIGHUP   ? "(SIGHUP)"
                         : signal == SIGINT ? "(SIGINT)"
                                            : "(SIGTERM)"));
    options.directory.clear(), options.checkpoints = {},
                               options.resume = options.json_lines = false;
    CHECK(contains(said(options), ": nothing was saved, because there is no directory\n"));
  }
}

TEST_CASE(
    "StopSignals: two objects at a time share the signals, and the last one restores the "
    "handlers") {
  using train::StopSignals;
  const auto handler = [](int signal) {
    struct sigaction now {};
    sigaction(signal, nullptr, &now);
    return now.sa_handler;
  };
  const auto interrupt = handler(SIGINT), pipe = handler(SIGPIPE), hangup = handler(SIGHUP);
  auto first = std::make_unique<StopSignals>(), second = std::make_unique<StopSignals>();
  CHECK((handler(SIGPIPE) == SIG_IGN));
  CHECK(StopSignals::any());
  kill(getpid(), SIGHUP);
  first.reset();
  CHECK(StopSignals::received() == SIGHUP);
  CHECK((handler(SIGINT) != interrupt));
  CHECK(StopSignals::any());
  second.reset();
  CHECK_FALSE(StopSignals::any());
  CHECK((handler(SIGINT) == interrupt));
  CHECK((handler(SIGHUP) == hangup));
  CHECK((handler(SIGPIPE) == pipe));
  const StopSignals again;
  CHECK(StopSignals::received() == 0);
}

/// Runs a training in a separate process that prints into a pipe without a reader; returns how it
/// ended.
int status_of_unread_training(const fs::path& directory, bool prints_itself) {
  int unread[2];
  REQUIRE(pipe(unread) == 0);
  const pid_t child = fork();
  if (child == 0) {
    omp_set_num_threads(1);  // the threads of the parent do not exist here
    ::signal(SIGPIPE, SIG_DFL);
    close(unread[0]);
    TrainerOptions options = saving(directory, 6);
    options.output = fdopen(unread[1], "w");
    const auto hooks = std::make_shared<Hooks>();
    if (prints_itself)
      hooks->step_end = [&](train::Trainer&) { static_cast<void>(write(unread[1], "x", 1) < 0); };
    options.callbacks = {hooks};
    TrainerCase c;
    try {
      train::Trainer(c.task(), c.adamw, options)
          .fit(trainer_loader({.batch_size = 16, .workers = 0}));
      train::print_for_people(options.output, "outside of fit(), too");
      _exit(0);
    } catch (...) { _exit(1); }
  }
  close(unread[0]), close(unread[1]);
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

TEST_CASE("Trainer: a reader that has gone makes its progress quiet and does not end it") {
  for (const bool prints_itself : {false, true}) {
    const TemporaryDirectory directory;
    CHECK(status_of_unread_training(directory.path(), prints_itself) == 0);
    CHECK(train::latest_checkpoint(directory / "checkpoints")->state.step == 6);
  }
}

TEST_CASE("Trainer: progress and validation show accuracy in one unit") {
  const std::string text = said({.max_epochs = 1});
  CHECK(contains(text, " %  "));
  const std::size_t validation = text.find("  validation  loss 1.");
  REQUIRE(validation != std::string::npos);
  const std::string line = text.substr(validation, text.find('\n', validation) - validation);
  CHECK(line.ends_with(" %"));
  CHECK(contains(line, "top1 "));
  CHECK_FALSE(contains(line, "top1 0."));
}

}  // namespace
}  // namespace halftone::test::trainer_directory_test

// Trainings that are stopped at random events, by signals, by exceptions and without a word, and
// started again until they end: with the weights, logs and checkpoints of one that never stopped.

namespace halftone::test::random_stops_test {
namespace {

namespace fs = std::filesystem;
using train::Trainer;
using train::TrainerOptions;

/// Ends a training at once, as a killed process does.
struct Killed {};

enum class Stop { none, signal, exception, kill };

/// Counts events, and stops at one of them.
struct Stopper {
  Stop how = Stop::none;
  int64_t events_left = 0;
  bool happened = false;
  void event() {
    if (how == Stop::none || events_left-- != 0) return;
    happened = true;
    if (how == Stop::signal) raise(SIGTERM);
    else if (how == Stop::exception) fail<UsageError>("stopper", "the event is here. Go on.");
    else throw Killed{};
  }
};

/// Has events in all hooks, numbers of its own, and may wish to stop. One of two: the other comes
/// after it.
struct Eventful final : train::Callback {
  Stopper& stopper;
  std::string name;
  int64_t wishes_at = -1;
  double sum = 0;  // saved
  Eventful(Stopper& s, std::string n, int64_t wish)
      : stopper(s), name(std::move(n)), wishes_at(wish) {}

  void on_fit_start(Trainer&) override { stopper.event(); }
  void on_batch_start(Trainer&, data::Batch&) override { stopper.event(); }
  bool on_loss(Trainer&, const Tensor&) override {
    stopper.event();
    return true;
  }
  bool drops_steps() const override { return true; }
  void on_log(Trainer& trainer) override {
    stopper.event();
    trainer.log(name + "/log", sum);
  }
  void on_validation_end(Trainer& trainer) override {
    stopper.event();
    trainer.log(name + "/validation", sum += trainer.metric("val/loss"));
  }
  void on_step_end(Trainer& trainer) override {
    stopper.event();
    trainer.log(name + "/step", sum += 1);
    if (trainer.position().step == wishes_at) trainer.stop(name + " wishes it");
  }
  void on_epoch_end(Trainer& trainer) override {
    stopper.event();
    trainer.log(name + "/epoch", sum += 0.25);
  }
  void on_fit_end(Trainer&) override { stopper.event(); }
  std::shared_ptr<void> during_validation(Trainer&) override {
    stopper.event();
    return nullptr;
  }
  std::map<std::string, double> state() const override { return {{"sum", sum}}; }
  void load_state(const std::map<std::string, double>& state) override { sum = state.at("sum"); }
};

/// Options drawn from a seed.
struct Plan {
  TrainerOptions options{};
  bool validates = false, averages = false, stops_early = false, plateau = false, monitors = false;
  int64_t wish = -1, patience = 1;

  explicit Plan(std::mt19937& random) {
    const auto draw = [&](int64_t below) { return int64_t(random() % uint64_t(below)); };
    constexpr std::array precisions{"fp32", "amp-fp16", "o2-bf16", "full-bf16-sr", "split-bf16"};
    TrainerOptions& o = options;
    o.precision = precisions[std::size_t(draw(precisions.size()))];
    o.accumulate_batches = 1 + draw(3);
    o.max_epochs = 2 + draw(2), o.max_steps = draw(2) ? 0 : 4 + draw(6);
    validates = draw(4) != 0;
    o.validate_every_epochs = draw(3), o.validate_every_steps = validates ? draw(4) : 0;
    o.sanity_check_batches = draw(2);
    validates = validates && (o.validate_every_epochs > 0 || o.validate_every_steps > 0);
    o.checkpoints = {.every_epochs = draw(3), .every_steps = draw(4), .keep_last = 1 + draw(3)};
    o.log_every_steps = 1 + draw(3);
    o.train_metrics = draw(2) == 0;
    o.clip_norm = double(draw(2));
    if (validates) {
      o.checkpoints.keep_best = draw(3);
      stops_early = draw(3) == 0, patience = 1 + draw(2);
      plateau = draw(3) == 0;
    }
    if (draw(3) == 0)
      wish = 1 + draw(6), o.min_steps = o.max_steps ? 0 : draw(10), o.min_epochs = draw(3);
    averages = draw(2) == 0, monitors = draw(3) == 0;
    if (!plateau && draw(2) == 0)
      o.schedule = [](int64_t) { return optim::LrSchedule::cosine(12); };
    o.json_lines = true, o.csv = false;
  }

  TrainerOptions in(const fs::path& directory, Stopper& stopper) const {
    TrainerOptions o = options;
    o.directory = directory, o.resume = true, o.exit_on_signal = false;
    o.callbacks = {std::make_shared<Eventful>(stopper, "a", -1)};
    if (averages)
      o.callbacks.push_back(
          std::make_shared<train::WeightAverage>(train::WeightAverageOptions{.decay = 0.5}));
    if (stops_early)
      o.callbacks.push_back(std::make_shared<train::EarlyStopping>(
          train::EarlyStoppingOptions{.patience = int(patience)}));
    if (plateau) o.callbacks.push_back(std::make_shared<train::LrOnPlateau>());
    if (monitors)
      o.callbacks.push_back(
          std::make_shared<train::PrecisionMonitor>(policy::ProbeOptions{.every = 2}));
    o.callbacks.push_back(std::make_shared<train::LearningRateMonitor>());
    o.callbacks.push_back(std::make_shared<Eventful>(stopper, "b", wish));
    return o;
  }
};

/// The rows of a log, by step; a repeated row replaces the one before it. Without times.
std::map<int64_t, nlohmann::json> rows_in(const fs::path& path) {
  std::map<int64_t, nlohmann::json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    nlohmann::json row = nlohmann::json::parse(line);
    row.erase("time"), row.erase("wall_time");
    rows[row.at("step").get<int64_t>()] = row;
  }
  return rows;
}

/// The lines of a probe, without the repetitions.
std::set<std::string> lines_in(const fs::path& path) {
  std::set<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.insert(line);
  return lines;
}

/// The numbers of all checkpoints, by name, without the times.
std::map<std::string, std::map<std::string, double>> checkpoints_in(const fs::path& root) {
  std::map<std::string, std::map<std::string, double>> all;
  for (const auto& found : train::valid_checkpoints(root)) {
    auto numbers = found.state.numbers;
    numbers.erase("state.seconds");
    // The plan alone may end on another word: an end that is due anyway is part of the plan.
    all["step " + std::to_string(found.state.step)] = numbers;
  }
  return all;
}

struct Result {
  train::FitResult fit;
  optim::NamedTensors state;
  int stops = 0;
};

/// The loader of a case whose loss counts as an event.
train::Task eventful(train::Task task, Stopper& stopper) {
  task.loss = [loss = task.loss, &stopper](const Tensor& outputs, const Tensor& targets) {
    stopper.event();
    return loss(outputs, targets);
  };
  return task;
}

Result trained(const Plan& plan, const fs::path& directory, std::mt19937* random) {
  Result result;
  for (int start = 0;; ++start) {
    REQUIRE(start < 60);
    Stopper stopper;
    const auto next_stop = [&] {
      stopper = {};
      if (!random || result.stops >= 8) return;
      stopper.how = Stop(1 + (*random)() % 3);
      stopper.events_left = int64_t((*random)() % 60);
    };
    next_stop();
    // With a checkpoint, other weights and another generator, which resuming replaces.
    const bool resumes = train::latest_checkpoint(directory / "checkpoints").has_value();
    TrainerCase parts(resumes ? uint64_t(100 + start) : 1);
    Trainer trainer(eventful(parts.task(), stopper), parts.adamw,
                    quiet(plan.in(directory, stopper)));
    const data::DataLoader loader = trainer_loader(),
                           validation = trainer_loader({.batch_size = 9, .seed = 3});
    for (bool same_trainer = true; same_trainer;) {
      bool ended = false;
      try {
        result.fit = plan.validates ? trainer.fit(loader, validation) : trainer.fit(loader);
        ended = result.fit.signal == 0;
      } catch (const Killed&) {
      } catch (const UsageError& error) {
        REQUIRE(std::string(error.what()) == "[stopper] the event is here. Go on.");
      }
      if (ended) {
        result.state = copy_of(trainer.training().state_dict());
        return result;
      }
      ++result.stops;
      // Half of the programs call fit() again, the others start again.
      same_trainer = stopper.how != Stop::kill && (*random)() % 2 == 0;
      if (same_trainer) next_stop();
    }
  }
}

TEST_CASE("random stops: the weights, logs and checkpoints of a training that never stopped") {
  const char* const wanted = std::getenv("HALFTONE_RANDOM_STOPS");
  const int64_t trainings = wanted ? std::atoll(wanted) : 60;
  int64_t stops = 0;
  for (int64_t seed = 1; seed <= trainings; ++seed) {
    CAPTURE(seed);
    std::mt19937 random{uint32_t(seed)};
    const Plan plan(random);
    const TemporaryDirectory directory;
    const Result whole = trained(plan, directory / "whole", nullptr);
    const Result parts = trained(plan, directory / "parts", &random);
    stops += parts.stops;
    CAPTURE(plan.options.precision);
    CAPTURE(plan.options.accumulate_batches);
    CHECK(parts.fit.reason == whole.fit.reason);
    CHECK(parts.fit.steps == whole.fit.steps);
    CHECK(parts.fit.epochs == whole.fit.epochs);
    CHECK(parts.fit.metrics == whole.fit.metrics);
    CHECK(same_state(parts.state, whole.state));
    CHECK(rows_in(directory / "parts/metrics.jsonl") == rows_in(directory / "whole/metrics.jsonl"));
    CHECK(checkpoints_in(directory / "parts/checkpoints") ==
          checkpoints_in(directory / "whole/checkpoints"));
    if (plan.monitors)
      CHECK(lines_in(directory / "parts/probe.jsonl") == lines_in(directory / "whole/probe.jsonl"));
  }
  CHECK(stops >= trainings);
  MESSAGE(stops << " stops in " << trainings << " trainings");
}

}  // namespace
}  // namespace halftone::test::random_stops_test
