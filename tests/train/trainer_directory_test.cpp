// The Trainer's directory: damage that it refuses or sets aside, options that have changed, missing
// permissions; and the note when a signal ends a training.
#include <omp.h>

#include <cstdio>

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <halftone/train/checkpoints.h>
#include <halftone/train/loggers.h>
#include <halftone/train/trainer.h>

#include "../without_root.h"
#include "trainer_cases.h"

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
                 const data::DataLoader& loader = trainer_loader()) {
  const TemporaryDirectory directory;
  std::FILE* const file = std::fopen((directory / "out").c_str(), "w");
  options.output = file, options.model_summary = false;
  TrainerCase c;
  optim::AdamW adamw(c.model.parameters(), adam);
  train::Trainer(c.task(), adamw, options).fit(loader, loader);
  std::fclose(file);
  return read_file(directory / "out");
}

void damage(const fs::path& checkpoint) {
  std::string bytes = read_file(checkpoint / "model.safetensors");
  bytes.back() = char(bytes.back() ^ 1);
  write_file(checkpoint / "model.safetensors", bytes);
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

TEST_CASE("Trainer: it also saves after SIGHUP, and every signal's note says where") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const TemporaryDirectory directory;
    TrainerOptions options = saving(directory.path(), 9);
    options.exit_on_signal = false;
    const auto hooks = std::make_shared<Hooks>();
    hooks->batch = [&, batches = 0](data::Batch&) mutable {
      if (++batches % 3 == 0) kill(getpid(), signal);
    };
    options.callbacks = {hooks};
    const std::string text = said(options);
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
