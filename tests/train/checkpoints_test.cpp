// Many checkpoints: which count, which is the latest, which are kept, which are removed.
#include <cerrno>
#include <limits>

#include <signal.h>
#include <unistd.h>

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <halftone/train/checkpoint.h>
#include <halftone/train/checkpoints.h>

#include "../support.h"
#include "trainer_cases.h"

namespace halftone::test::checkpoints_test {

using train::checkpoint_name, train::save_checkpoint;

namespace {
void save_with(const fs::path& root, int64_t step, double accuracy) {
  train::Checkpoint checkpoint = small_checkpoint(step);
  checkpoint.state.numbers["accuracy"] = accuracy;
  save_checkpoint(root / checkpoint_name(step), checkpoint);
}

std::vector<int64_t> steps_in(const fs::path& root) {
  std::vector<int64_t> steps;
  for (const auto& found : train::valid_checkpoints(root)) steps.push_back(found.state.step);
  return steps;
}
using Steps = std::vector<int64_t>;
}  // namespace

TEST_CASE("checkpoints: listed by step, without temporaries, damaged ones and other files") {
  const TemporaryDirectory root;
  CHECK(train::valid_checkpoints(root / "missing").empty());
  CHECK(!train::latest_checkpoint(root / "missing"));
  CHECK(!train::latest_checkpoint(root.path()));
  save_checkpoint(root / "zebra", small_checkpoint(2));
  save_checkpoint(root / "ape", small_checkpoint(10));
  save_checkpoint(root / "cat", small_checkpoint(2));
  fs::copy(root / "ape", root / ".tmp-ape-1-1", fs::copy_options::recursive);
  fs::copy(root / "ape", root / "torn", fs::copy_options::recursive);
  fs::remove(root / "torn/manifest.json");
  fs::create_directory(root / "other");
  write_file(root / "log.txt", "text");
  const auto found = train::valid_checkpoints(root.path());
  REQUIRE(found.size() == 3);
  CHECK(found[0].path == root / "cat");
  CHECK(found[1].path == root / "zebra");
  CHECK(found[2].path == root / "ape");
  CHECK(train::latest_checkpoint(root.path())->path == root / "ape");
  damage(root / "ape");
  CHECK(train::latest_checkpoint(root.path())->path == root / "zebra");
  CHECK(steps_in(root.path()) == Steps{2, 2});
  CHECK(contains(message_of<FormatError>([&] { train::valid_checkpoints(root / "log.txt"); }),
                 "[checkpoint] cannot list"));
}

TEST_CASE("checkpoints: only checkpoints are removed") {
  const TemporaryDirectory root;
  save_checkpoint(root / "a", small_checkpoint(1));
  save_checkpoint(root / "damaged", small_checkpoint(2));
  damage(root / "damaged");
  save_checkpoint(root / "annotated", small_checkpoint(3));
  write_file(root / "annotated/notes.txt", "keep me");
  fs::create_directory(root / "empty");
  fs::create_directory_symlink(root / "a", root / "link");
  write_file(root / "file", "");
  for (const char* name : {"annotated", "empty", "link", "file", "missing", ".", ".."}) {
    CAPTURE(name);
    const std::set<std::string> before = names_in(root.path());
    CHECK(contains(message_of<UsageError>([&] { train::remove_checkpoint(root / name); }),
                   "Nothing was removed"));
    CHECK(names_in(root.path()) == before);
  }
  CHECK(same(train::load_checkpoint(root / "annotated"), small_checkpoint(3)));
  train::remove_checkpoint(root / "a/");
  train::remove_checkpoint(root / "damaged");
  CHECK(names_in(root.path()) == std::set<std::string>{"annotated", "empty", "link", "file"});
}

TEST_CASE("checkpoints: the last are kept, and a damaged one never counts") {
  const TemporaryDirectory root;
  for (const int64_t step : {1, 2, 3, 4, 5}) save_with(root.path(), step, 0);
  CHECK(train::keep_last(root.path(), 9).empty());
  CHECK(train::keep_last(root.path(), 4) ==
        std::vector<fs::path>{root / std::string(checkpoint_name(1))});
  CHECK(steps_in(root.path()) == Steps{2, 3, 4, 5});
  damage(root / checkpoint_name(5));
  train::keep_last(root.path(), 1);
  CHECK(steps_in(root.path()) == Steps{4});  // 5 would have been kept instead
  CHECK(contains(message_of<UsageError>([&] { train::keep_last(root.path(), 0); }), "the last 0"));
  write_file(root / checkpoint_name(4) / "notes.txt", "why this one matters");
  save_with(root.path(), 6, 0);
  CHECK(train::keep_last(root.path(), 1) ==
        std::vector<fs::path>{root / std::string(checkpoint_name(5))});  // now that 6 is complete
  CHECK(steps_in(root.path()) == Steps{4, 6});
}

TEST_CASE("checkpoints: the best by a metric are kept in addition to the last") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> accuracies{0.5, 0.9, nan, 0.7, 0.9, 0.6, nan};
  const auto filled = [&](const fs::path& root) {
    for (std::size_t i = 0; i < accuracies.size(); ++i) save_with(root, int64_t(i), accuracies[i]);
  };
  const auto kept = [&](const train::Retention& retention) {
    const TemporaryDirectory root;
    filled(root.path());
    train::keep(root.path(), retention);
    return steps_in(root.path());
  };
  using train::Retention;
  CHECK(kept({.best = 1, .metric = "accuracy", .larger_is_better = true}) == Steps{4, 6});
  CHECK(kept({.best = 3, .metric = "accuracy", .larger_is_better = true}) == Steps{1, 3, 4, 6});
  CHECK(kept({.best = 1, .metric = "accuracy"}) == Steps{0, 6});
  CHECK(kept({.last = 2, .best = 9, .metric = "accuracy"}) == Steps{0, 1, 3, 4, 5, 6});
  CHECK(kept({.last = 2, .best = 9, .metric = "unknown"}) == Steps{5, 6});
  const TemporaryDirectory root;
  filled(root.path());
  damage(root / checkpoint_name(4));
  train::keep(root.path(), {.best = 1, .metric = "accuracy", .larger_is_better = true});
  CHECK(steps_in(root.path()) == Steps{1, 6});
  CHECK(contains(message_of<UsageError>([&] { train::keep(root.path(), {.best = 1}); }),
                 "no metric"));
}

TEST_CASE("checkpoints: the library removes only names that it gives") {
  using train::step_of_name;
  CHECK(step_of_name("step-000000120") == 120);
  CHECK(step_of_name("step-000000120-2") == 120);
  CHECK(step_of_name("step-000000120-17") == 120);
  CHECK(step_of_name("step-1234567890123") == 1234567890123);
  for (const char* name :
       {"my best", "step-", "step-120", "step-0000000120", "step-000000120-1", "step-000000120-02",
        "step-000000120-", "step-000000120 (copy)", "step-000000120-2-3", "step--00000001",
        "step-00000012x", "step-99999999999999999999", "Step-000000120", ".tmp-step-000000120-1-1"})
    CHECK_MESSAGE(!step_of_name(name), name);

  const TemporaryDirectory root;
  for (const int64_t step : {1, 2, 3}) save_with(root.path(), step, double(step));
  for (const char* name : {"my best", "step-1", "step-000000002 (copy)"})
    fs::copy(root / checkpoint_name(1), root / name, fs::copy_options::recursive);
  train::keep(root.path(), {.last = 1, .best = 1, .metric = "accuracy", .larger_is_better = true});
  CHECK(names_in(root.path()) ==
        std::set<std::string>{"my best", "step-000000003", "step-1", "step-000000002 (copy)"});
  CHECK(train::free_name(root.path(), 3) == root / "step-000000003-2");
  CHECK(train::free_name(root.path(), 4) == root / "step-000000004");
}

TEST_CASE(
    "checkpoints: retention reads nothing before it must remove something, and nothing twice") {
  const TemporaryDirectory root;
  train::Keeper keeper(root.path());
  const train::Retention retention{.last = 3};
  for (const int64_t step : {1, 2, 3}) save_with(root.path(), step, 0);
  // Damage is not even noticed as long as nothing is removed; then it is.
  damage(root / checkpoint_name(3));
  CHECK(keeper.keep(retention).empty());
  save_with(root.path(), 4, 0);
  CHECK(keeper.keep(retention).empty());  // 4, 2 and 1 are the last undamaged ones
  save_with(root.path(), 5, 0);
  CHECK(keeper.keep(retention) == std::vector<fs::path>{root / checkpoint_name(1)});
  CHECK(steps_in(root.path()) == Steps{2, 4, 5});
  // A verified checkpoint that has changed since is verified again.
  damage(root / checkpoint_name(5));
  save_with(root.path(), 6, 0);
  CHECK(keeper.keep(retention).empty());
  CHECK(steps_in(root.path()) == Steps{2, 4, 6});

  // Bytes that are known are not read: without permission the checkpoint is still valid.
  const TemporaryDirectory other;
  train::Keeper reader(other.path());
  for (const int64_t step : {1, 2, 3}) save_with(other.path(), step, 0);
  CHECK(reader.keep({.last = 2}).size() == 1);
  const fs::path known = other / checkpoint_name(3) / "model.safetensors";
  save_with(other.path(), 4, 0);
  {
    const WithoutRoot without_root(other.path());
    REQUIRE(chmod(known.c_str(), 0) == 0);
    CHECK(reader.keep({.last = 2}) == std::vector<fs::path>{other / checkpoint_name(2)});
    REQUIRE(chmod(known.c_str(), 0644) == 0);
  }
}

TEST_CASE("checkpoints: a copy under a higher number is as old as its step") {
  const TemporaryDirectory root;
  for (const int64_t step : {1, 2, 3}) save_with(root.path(), step, 0);
  const fs::path copy = root / checkpoint_name(9);
  fs::copy(root / checkpoint_name(1), copy, fs::copy_options::recursive);
  CHECK(train::latest_checkpoint(root.path())->path == root / checkpoint_name(3));
  train::Keeper keeper(root.path());
  CHECK(keeper.keep({.last = 2}) == std::vector<fs::path>{root / checkpoint_name(1), copy});
  CHECK(steps_in(root.path()) == Steps{2, 3});
  fs::copy(root / checkpoint_name(2), copy, fs::copy_options::recursive);
  save_with(root.path(), 4, 0);
  CHECK(keeper.keep({.last = 1}).size() == 3);
  CHECK(names_in(root.path()) == std::set<std::string>{checkpoint_name(4)});
}

TEST_CASE("checkpoints: damaged ones are named, with the reason") {
  const TemporaryDirectory root;
  CHECK(train::damaged_checkpoints(root / "missing").empty());
  for (const int64_t step : {1, 2, 3, 4}) save_with(root.path(), step, 0);
  damage(root / checkpoint_name(2));
  fs::remove(root / checkpoint_name(3) / "manifest.json");
  fs::create_directory(root / "step-000000009");  // all of it is lost
  fs::create_directory(root / "plots");
  write_file(root / "notes.txt", "x");
  const auto damaged = train::damaged_checkpoints(root.path());
  REQUIRE(damaged.size() == 3);
  CHECK(damaged[0].path == root / "step-000000009");
  CHECK(contains(damaged[0].reason, "cannot open"));
  CHECK(damaged[1].path == root / checkpoint_name(3));
  CHECK(damaged[2].reason == "the checksum of " +
                                 (root / checkpoint_name(2) / "model.safetensors").string() +
                                 " is not that of its manifest");
}

TEST_CASE("checkpoints: leftovers of killed processes are removed, files being written stay") {
  const TemporaryDirectory root;
  save_checkpoint(root / "a", small_checkpoint(1));
  fs::create_directories(root / ".tmp-b-123-1");
  write_file(root / ".tmp-b-123-1/model.safetensors", "half");
  const train::TemporaryName living = train::make_temporary(root / "c");
  CHECK(train::remove_abandoned(root.path()) == std::vector<fs::path>{root / ".tmp-b-123-1"});
  CHECK(names_in(root.path()) == std::set<std::string>{"a", living.path.filename().string()});
  CHECK(train::remove_abandoned(root / "missing").empty());
}

}  // namespace halftone::test::checkpoints_test

// One training at a time in a directory: in this process, in another one, and on a file system
// without locks.

namespace halftone::test::directory_lock_test {
namespace {

using train::DirectoryLock;

int no_locks(int, int) {
  errno = ENOLCK;
  return -1;
}
int not_supported(int, int) {
  errno = EOPNOTSUPP;
  return -1;
}

TEST_CASE("DirectoryLock: held once, named, and free again when its holder ends") {
  const TemporaryDirectory directory;
  const std::string self = "process " + std::to_string(getpid()) + " on ";
  {
    const DirectoryLock lock(directory.path());
    CHECK(lock.holds());
    const std::string message = message_of<UsageError>([&] { DirectoryLock(directory.path()); });
    CHECK(contains(message, "[Trainer] another process is at work in " + directory.path().string() +
                                ": " + self));
    CHECK(contains(message, ", since 20"));
    CHECK(contains(message, " UTC. Wait for its end, stop it, or name another directory."));
    CHECK(contains(read_file(directory / ".lock"), self));
  }
  CHECK(DirectoryLock(directory.path()).holds());
  CHECK(contains(message_of<FormatError>([&] { DirectoryLock(directory / "none", "test"); }),
                 "[test] cannot write "));
}

TEST_CASE("DirectoryLock: a process that is killed leaves none") {
  const TemporaryDirectory directory;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const DirectoryLock lock(directory.path());
    static_cast<void>(write(ready[1], "x", 1) == 1);
    pause();
    _exit(0);
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  close(ready[0]), close(ready[1]);
  CHECK(contains(message_of<UsageError>([&] { DirectoryLock(directory.path()); }),
                 "process " + std::to_string(child) + " on "));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  CHECK(DirectoryLock(directory.path()).holds());
}

TEST_CASE("DirectoryLock: a file system without locks refuses no process, and a note says so") {
  const TemporaryDirectory directory;
  for (const auto system : {no_locks, not_supported}) {
    const DirectoryLock first(directory.path(), "test", system),
        second(directory.path(), "test", system);
    CHECK_FALSE(first.holds());
    CHECK_FALSE(second.holds());
  }
}

TEST_CASE("Trainer: another one cannot use its directory while it trains") {
  const TemporaryDirectory directory;
  const train::TrainerOptions options{
      .max_epochs = 1, .directory = directory.path(), .resume = true};
  std::string message;
  train::TrainerOptions outer = options;
  const auto hooks = std::make_shared<Hooks>();
  hooks->step_end = [&](train::Trainer&) {
    if (!message.empty()) return;
    TrainerRun second(options);
    message = message_of<UsageError>([&] { second.trainer.fit(trainer_loader()); });
  };
  outer.callbacks = {hooks};
  TrainerRun first(outer);
  CHECK(first.trainer.fit(trainer_loader()).epochs == 1);
  CHECK(contains(message, "[Trainer] another process is at work in " + directory.path().string()));
  // Afterwards it can, and the first may continue when the second has ended.
  TrainerRun second(options);
  CHECK(second.trainer.fit(trainer_loader()).epochs == 1);
  CHECK(first.trainer.fit(trainer_loader()).epochs == 1);
}

TEST_CASE("DirectoryLock: a file with another name is neither locked nor written") {
  const TemporaryDirectory directory;
  write_file(directory / "precious", "text");
  std::filesystem::create_hard_link(directory / "precious", directory / ".lock");
  CHECK(contains(message_of<FormatError>([&] { DirectoryLock(directory.path()); }),
                 "[Trainer] " + (directory / ".lock").string() + " is a file of 2 names (hard "));
  CHECK(read_file(directory / "precious") == "text");
  std::filesystem::remove(directory / ".lock");
  CHECK(DirectoryLock(directory.path()).holds());
}

TEST_CASE("DirectoryLock: the holder's name from another program is printable") {
  const TemporaryDirectory directory;
  const DirectoryLock lock(directory.path());
  write_file(directory / ".lock", "\x1b[2J\u202e\xff\nmore");
  CHECK(contains(message_of<UsageError>([&] { DirectoryLock(directory.path()); }),
                 ": \\x1b[2J\\u202e\\xff. Wait for its end"));
}

}  // namespace
}  // namespace halftone::test::directory_lock_test

// A training's directory without a Trainer: what it resumes from, refuses, sets aside, keeps and
// removes.

namespace halftone::test::training_directory_test {
namespace {

using train::CheckpointState;
using train::DirectoryOptions;
using train::TrainingDirectory;

void save(TrainingDirectory& directory, int64_t step) {
  directory.save({.step = step, .batches = step},
                 [&](const fs::path& path) { save_checkpoint(path, small_checkpoint(step)); });
}

TEST_CASE("TrainingDirectory: it keeps checkpoints by the retention, and resumes from the newest") {
  const TemporaryDirectory temporary;
  const fs::path here = temporary / "a/run", root = here / "checkpoints";
  const DirectoryOptions options{.retention = {.last = 2}, .resume = true};
  TrainingDirectory directory(here, options);
  CHECK_FALSE(fs::exists(here));
  {
    const train::DirectoryLock lock = directory.lock();
    CHECK(contains(message_of<UsageError>([&] { static_cast<void>(directory.lock()); }),
                   "another process is at work in " + here.string()));
    CHECK_FALSE(directory.open());
    CHECK_FALSE(directory.holds({.step = 0}));
    for (const int64_t step : {1, 2, 3}) save(directory, step);
    CHECK(directory.last_saved() == root / "step-000000003");
    CHECK(directory.holds({.step = 3, .batches = 3}));
    CHECK_FALSE(directory.holds({.step = 3, .epoch = 1}));
    save(directory, 3);  // the name is taken
    CHECK(directory.last_saved() == root / "step-000000003-2");
    CHECK(names_in(root) == std::set<std::string>{"step-000000003", "step-000000003-2"});
    CHECK_THROWS_AS(
        directory.save({.step = 4}, [](const fs::path&) { fail<FormatError>("test", "full."); }),
        FormatError);
    CHECK_FALSE(directory.holds({.step = 4}));
    CHECK(names_in(root).size() == 2);
  }
  write_file(root / "step-000000003-2/model.safetensors", "damaged");
  TrainingDirectory resumed(here, options);
  const train::DirectoryLock lock = resumed.lock();
  const auto found = resumed.open();
  REQUIRE(found);
  CHECK(found->path == root / "step-000000003");
  CHECK(resumed.last_saved() == found->path);
  CHECK(resumed.holds(found->state));
}

TEST_CASE("TrainingDirectory: files of an earlier training are refused, or set aside with a note") {
  const TemporaryDirectory temporary;
  const fs::path here = temporary.path(), old = here / "old-1";
  std::string told;
  const auto tell = [&](const std::string& text) { told += text + '\n'; };
  const DirectoryOptions all{.csv = true, .json_lines = true, .tensorboard = true};
  {
    TrainingDirectory first(here, all, tell);
    CHECK_FALSE(first.open());
    CHECK(first.loggers().size() == 3);
    save(first, 1);
  }
  const std::set<std::string> files{"checkpoints", "metrics.csv", "metrics.jsonl", "tensorboard"};
  CHECK(names_in(here) == files);
  const auto refusal = [&](const DirectoryOptions& options) {
    TrainingDirectory directory(here, options, tell);
    return message_of<Error>([&] { directory.open(); });
  };
  CHECK(
      contains(refusal({}), " holds the checkpoints of an earlier training. Pass .resume = true"));
  fs::remove(here / "checkpoints/step-000000001/manifest.json");
  CHECK(contains(refusal({.resume = true}), "there is no valid checkpoint in "));
  CHECK(names_in(here) == files);
  CHECK(told.empty());

  TrainingDirectory anew(here, {.resume = true, .set_aside = true}, tell);
  CHECK_FALSE(anew.open());
  CHECK(told == "what was in " + here.string() + " is now in " + old.string() + '\n');
  CHECK(names_in(here) == std::set<std::string>{"checkpoints", "old-1"});
  CHECK(names_in(old) == files);
  CHECK(anew.loggers().empty());
}

TEST_CASE("TrainingDirectory: logs without checkpoints are also refused or set aside") {
  for (const std::string name : {"metrics.csv", "metrics.jsonl", "tensorboard"}) {
    CAPTURE(name);
    const TemporaryDirectory temporary;
    const fs::path here = temporary.path();
    if (name == "tensorboard") {
      fs::create_directory(here / name);
      write_file(here / name / "events.out.tfevents.1", "x");
    } else {
      write_file(here / name, "step,loss\n1,2\n");
    }
    CHECK(train::left_by_training(here) == std::vector<std::string>{name});
    CHECK(contains(message_of<UsageError>([&] { TrainingDirectory(here, {}).open(); }),
                   " holds the logs of an earlier training, " + name +
                       ", and no checkpoint. Pass .set_aside = true"));
    CHECK_FALSE(TrainingDirectory(here, {.resume = true}).open());  // killed before its first one
    CHECK(fs::exists(here / name));
    CHECK_FALSE(TrainingDirectory(here, {.set_aside = true}).open());
    CHECK(names_in(here / "old-1").contains(name));
    CHECK_FALSE(fs::exists(here / name));
  }
  const TemporaryDirectory empty;
  write_file(empty / "metrics.csv", "");
  fs::create_directory(empty / "tensorboard");
  CHECK(train::left_by_training(empty.path()).empty());
  CHECK_FALSE(TrainingDirectory(empty.path(), {}).open());
}

}  // namespace
}  // namespace halftone::test::training_directory_test
