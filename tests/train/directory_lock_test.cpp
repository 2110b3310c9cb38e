// One training at a time in a directory: in this process, in another one, and on a file system
// without locks.
#include <doctest/doctest.h>

#include <cerrno>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <halftone/train/durable_files.h>

#include "trainer_cases.h"

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
