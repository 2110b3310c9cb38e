// Records of a training, without a Trainer: rows, the last numbers and their checkpoint, notes for
// users.
#include <doctest/doctest.h>

#include <cstdio>

#include <halftone/train/loggers.h>

#include "../support.h"

namespace halftone::test::records_test {
namespace {

/// Stores the records it gets: "3: a=7 b=2; ".
struct Listener final : train::Logger {
  std::string heard{};
  int flushes = 0;

  void flush() override { ++flushes; }

 private:
  void write(const train::LogRecord& record) override {
    heard += std::to_string(record.step) + ':';
    for (const train::NamedNumber& number : record.numbers)
      heard += ' ' + std::string(number.name) + '=' + std::to_string(int(number.value));
    heard += "; ";
  }
  void write_text(int64_t, double, std::string_view, std::string_view) override {}
};

TEST_CASE("Records: a row has each name once, and goes to every logger once") {
  train::Records records;
  const auto one = std::make_shared<Listener>(), two = std::make_shared<Listener>();
  records.loggers = {one, two};
  records.write(0);  // nothing
  records.log("a", 1, 3), records.log("b", 2, 3), records.log("a", 7, 3);
  records.write(3), records.write(3);
  records.log("b", 4, 5), records.write(5);
  CHECK(one->heard == "3: a=7 b=2; 5: b=4; ");
  CHECK(two->heard == one->heard);
  CHECK(one->flushes == 0);
  records.flush();
  CHECK(two->flushes == 1);
  CHECK(message_of<UsageError>([&] { records.log("step", 1, 6); }) != "");
  records.write(6);
  CHECK(two->heard == one->heard);
}

TEST_CASE("Records: the last number of a name is kept, and unknown names are errors") {
  train::Records records;
  CHECK_FALSE(records.last("val/loss"));
  records.log("val/loss", 2, 1), records.log("val/loss", 0.5, 4), records.log("lr", 1, 4);
  records.write(4);
  CHECK(records.last("val/loss") == 0.5);
  CHECK(records.metric("lr") == 1);
  CHECK(records.last() == std::map<std::string, double>{{"lr", 1}, {"val/loss", 0.5}});
  const std::string message = message_of<UsageError>([&] { records.metric("val/los"); });
  CHECK(contains(message, "there is no metric named \"val/los\""));
  CHECK(contains(message, "Did you mean \"val/loss\"?"));
}

TEST_CASE("Records: a checkpoint restores the last numbers, and ranks only those of its step") {
  train::Records records;
  records.log("val/loss", 0.25, 4), records.log("train/loss", 3, 6);
  train::CheckpointState state{.step = 6};
  records.save(state);
  CHECK(state.numbers.contains("train/loss"));
  CHECK_FALSE(state.numbers.contains("val/loss"));
  train::Records resumed;
  resumed.restore(state);
  CHECK(resumed.last() == records.last());
  train::CheckpointState again{.step = 6};
  resumed.save(again);
  CHECK(again.numbers == state.numbers);
  const auto logger = std::make_shared<Listener>();
  resumed.loggers = {logger};
  resumed.write(6);
  CHECK(logger->heard.empty());  // earlier records are not rows of this run
}

TEST_CASE("Records: notes go to the progress bar, if there is one") {
  const TemporaryDirectory directory;
  std::FILE* const file = std::fopen((directory / "out").c_str(), "w");
  train::Records records;
  records.note("nobody reads this");
  records.progress.emplace(train::ProgressOptions{.output = file});
  records.note("first"), records.tell("second");
  records.progress.reset();
  std::fclose(file);
  CHECK(read_file(directory / "out") == "first\nsecond\n");
}

}  // namespace
}  // namespace halftone::test::records_test
