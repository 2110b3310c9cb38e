// A training's directory without a Trainer: what it resumes from, refuses, sets aside, keeps and
// removes.
#include <doctest/doctest.h>

#include <halftone/train/checkpoints.h>

#include "checkpoint_cases.h"

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
