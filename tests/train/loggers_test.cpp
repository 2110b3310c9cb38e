// The three log files agree with each other, survive resumption and crashes, and report errors.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include <signal.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include <halftone/train/loggers.h>
#include <halftone/train/progress.h>

#include "../support.h"
#include "log_readers.h"
#include "support.h"
#include "trainer_cases.h"

namespace halftone::train {
namespace {

using test::contains;
using test::message_of;
using test::read_file;
using test::TemporaryDirectory;

constexpr double infinity = std::numeric_limits<double>::infinity();

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

double number_of(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return std::nan("");
  REQUIRE((value == "Infinity" || value == "-Infinity"));
  return value == "Infinity" ? infinity : -infinity;
}

bool same(double a, double b) {
  return (a == b && std::signbit(a) == std::signbit(b)) || (std::isnan(a) && std::isnan(b));
}

TEST_CASE("CRC-32C has the values of RFC 3720, B.4") {
  using event_file::crc32c;
  CHECK(crc32c("123456789") == 0xe3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aau);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
  // The head of nearly every event file: a record of 24 bytes, which is `18 0 .. 0 a3 7f 4b 22`.
  CHECK(event_file::masked_crc(std::string("\x18\0\0\0\0\0\0\0", 8)) == 0x224b7fa3u);
}

TEST_CASE("CSV, JSON lines and TensorBoard hold the same records") {
  const TemporaryDirectory temporary;
  // read_tensorboard.py reads the files after the test.
  const char* const kept = std::getenv("HALFTONE_TEST_LOGS");
  const std::filesystem::path directory = kept ? kept : temporary.path();
  const std::vector<std::string> names = {"train/loss", "accuracy, \"top-5\"", "\xc3\xa9tat"};
  const double values[] = {0.1,  1e-30, std::nan(""), infinity, -infinity, 1.0 / 3,
                           1e38, -0.0,  65536,        5e-324,   -2.5,      1e300};
  std::filesystem::path events;
  {
    CsvLogger csv(directory / "log.csv");
    JsonLinesLogger json(directory / "log.jsonl");
    TensorBoardLogger board(directory / "board");
    events = board.path();
    for (int64_t i = 0; i < 4; ++i) {
      std::vector<NamedNumber> numbers;
      for (std::size_t j = 0; j < 3; ++j)
        if (i != 1 || j != 1) numbers.push_back({names[j], values[3 * i + int64_t(j)]});
      const LogRecord record{i * 1'000'000'000'000, 1700000000.25 + double(i), numbers};
      csv.log(record), json.log(record), board.log(record);
    }
    if (kept) json.log_text(9, "options", "lr = 0.1\n"), board.log_text(9, "options", "lr = 0.1\n");
  }
  const auto csv = lines_of(read_file(directory / "log.csv"));
  const auto json = lines_of(read_file(directory / "log.jsonl"));
  const auto board = test::read_events(read_file(events));
  CHECK(csv[0] == "step,time,train/loss,\"accuracy, \"\"top-5\"\"\",\xc3\xa9tat");
  CHECK(board[0].version == "brain.Event:2");
  REQUIRE(csv.size() == 5);
  REQUIRE(json.size() >= 4);
  REQUIRE(board.size() >= 5);
  for (std::size_t i = 0; i < 4; ++i) {
    INFO(json[i]);
    const auto object = nlohmann::json::parse(json[i]);
    std::vector<std::string> cells;
    std::istringstream row(csv[i + 1] + ',');
    for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
    REQUIRE(cells.size() == 5);
    CHECK(cells[0] == std::to_string(object["step"].get<int64_t>()));
    CHECK(board[i + 1].step == object["step"].get<int64_t>());
    CHECK(std::stod(cells[1]) == object["time"].get<double>());
    CHECK(board[i + 1].seconds == object["time"].get<double>());
    std::size_t at = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      if (i == 1 && j == 1) {
        CHECK(cells[2 + j].empty());
        CHECK(!object.contains(names[j]));
        continue;
      }
      const double wanted = values[3 * i + j];
      CHECK(same(std::strtod(cells[2 + j].c_str(), nullptr), wanted));
      CHECK(same(number_of(object.at(names[j])), wanted));
      const auto& [tag, value] = board[i + 1].scalars.at(at++);
      CHECK(tag == names[j]);
      CHECK(same(value, float(wanted)));
    }
    CHECK(at == board[i + 1].scalars.size());
  }
}

TEST_CASE("text is written to all three") {
  const TemporaryDirectory directory;
  const std::string text = "lr = 0.1\n\"quoted\", \xc3\xa9";
  CsvLogger csv(directory / "log.csv");
  JsonLinesLogger json(directory / "log.jsonl");
  TensorBoardLogger board(directory / "board");
  for (Logger* logger : std::initializer_list<Logger*>{&csv, &json, &board})
    logger->log_text(7, "options", text), logger->flush();
  CHECK(read_file(directory / "log.csv.txt") == "step 7, options:\n" + text + "\n\n");
  CHECK(nlohmann::json::parse(read_file(directory / "log.jsonl"))["text"]["options"] == text);
  const auto events = test::read_events(read_file(board.path()));
  CHECK(events.at(1).texts.at(0) ==
        std::pair<std::string, std::string>("options/text_summary", text));
}

TEST_CASE("a new name adds a column to the whole CSV file, in this run and the next") {
  const TemporaryDirectory directory;
  const auto path = directory / "log.csv";
  std::filesystem::create_symlink("log.csv", directory / "link.csv");
  {
    CsvLogger log(directory / "link.csv");
    log.log({1, 10, {}});
    const NamedNumber loss[] = {{"loss", 0.5}}, both[] = {{"b,c", 2}, {"loss", 0.25}};
    log.log({2, 20, loss});
    log.log({3, 30, both});
  }
  CHECK(read_file(path) == "step,time,loss,\"b,c\"\n1,10,,\n2,20,0.5,\n3,30,0.25,2\n");
  test::write_file(path, read_file(path) + "4,40,0.");  // a crash
  {
    CsvLogger log(path);
    const NamedNumber known[] = {{"b,c", 3}}, unknown[] = {{"d", 4}};
    log.log({4, 40, known});
    log.log({5, 50, unknown});
  }
  CHECK(read_file(path) ==
        "step,time,loss,\"b,c\",d\n1,10,,,\n2,20,0.5,,\n3,30,0.25,2,\n4,40,,3,\n5,50,,,4\n");
  CHECK(std::filesystem::is_symlink(directory / "link.csv"));
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 2);
}

TEST_CASE("resumed logs continue: a broken last line is cut, event files are next to each other") {
  const TemporaryDirectory directory;
  test::write_file(directory / "log.jsonl", "{\"step\": 1, \"time\": 1, \"a\": 2}\n{\"ste");
  { JsonLinesLogger(directory / "log.jsonl").log(LogRecord{2, 2.5, {}}); }
  CHECK(read_file(directory / "log.jsonl") ==
        "{\"step\": 1, \"time\": 1, \"a\": 2}\n{\"step\": 2, \"time\": 2.5}\n");
  { TensorBoardLogger(directory / "board").log(1, {{"a", 1}}); }
  { TensorBoardLogger(directory / "board").log(2, {{"a", 2}}); }
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory / "board")) {
    ++files;
    CHECK(test::read_events(read_file(entry.path())).size() == 2);
  }
  CHECK(files == 2);
}

TEST_CASE("mistakes are errors that log nothing") {
  const TemporaryDirectory directory;
  const auto path = directory / "log.jsonl";
  JsonLinesLogger log(path);
  const auto message = [&](std::initializer_list<NamedNumber> numbers) {
    return message_of<UsageError>([&] { log.log(1, numbers); });
  };
  CHECK(contains(message({{"", 1}}), "not a valid name"));
  CHECK(contains(message({{"time", 1}}), "not a valid name"));
  CHECK(contains(message({{"a", 1}, {"a", 2}}), "twice"));
  CHECK(contains(message({{"a\n", 1}}), "control character"));
  CHECK(contains(message({{"\xff", 1}}), "not UTF-8"));
  CHECK(contains(message_of<UsageError>([&] { log.log_text(1, "a", "\xc0\x80"); }), "not UTF-8"));
  log.flush();
  CHECK(read_file(path).empty());

  const auto csv = [](const std::filesystem::path& where) {
    return message_of<FormatError>([&] { CsvLogger(where).log(1, {{"a", 1}}); });
  };
  CHECK(contains(csv("/nowhere/log.csv"), "cannot write /nowhere/log.csv: No such file"));
  CHECK(contains(csv(directory.path()), "Is a directory"));
  test::write_file(directory / "other.csv", "epoch,loss\n1,2\n");
  CHECK(contains(csv(directory / "other.csv"), "does not begin with the columns"));
  CHECK(read_file(directory / "other.csv") == "epoch,loss\n1,2\n");
  CHECK(contains(message_of<FormatError>([] { TensorBoardLogger("/nowhere/board"); }),
                 "cannot make the directory /nowhere/board"));
  CHECK(contains(message_of<FormatError>([&] { TensorBoardLogger(directory / "other.csv"); }),
                 "cannot make the directory"));
}

/// No file may grow beyond this size within the scope, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
  sighandler_t handler_;
};

TEST_CASE("a CSV file that cannot be rewritten for a new column does not change") {
  const TemporaryDirectory directory;
  CsvLogger log(directory / "log.csv");
  const NamedNumber a[] = {{"a", 1}}, both[] = {{"a", 2}, {"b", 3}};
  log.log({1, 10, a});
  log.flush();
  {
    const FileSizeLimit limit(20);
    CHECK(contains(message_of<FormatError>([&] { log.log({2, 20, both}); }), "cannot write"));
  }
  CHECK(read_file(directory / "log.csv") == "step,time,a\n1,10,1\n");
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
  log.log({3, 30, a});
  log.log({4, 40, both});
  log.flush();
  CHECK(read_file(directory / "log.csv") == "step,time,a,b\n1,10,1,\n3,30,1,\n4,40,2,3\n");
}

TEST_CASE("a full disk is an error; waiting lines are written once there is room") {
  // A limit on the file's size stops a write in the middle of a line.
  const TemporaryDirectory directory;
  LogFile file("test", directory / "log", LogFile::Tail::keep);
  file.append("0123456789\n", 0);
  file.append("abcdefghij\n", 0);
  std::string message, partial;
  {
    const FileSizeLimit limit(15);
    message = message_of<FormatError>([&] { file.flush(); });
    partial = read_file(directory / "log");
  }
  CHECK(contains(message, "7 bytes wait in memory"));
  CHECK(partial == "0123456789\nabcd");
  file.append("k\n", 0);
  file.flush();
  CHECK(read_file(directory / "log") == "0123456789\nabcdefghij\nk\n");
}

TEST_CASE("a log call costs microseconds") {
  const TemporaryDirectory directory;
  CsvLogger csv(directory / "log.csv");
  JsonLinesLogger json(directory / "log.jsonl");
  TensorBoardLogger board(directory / "board");
  constexpr int calls = 20000;
  for (Logger* logger : std::initializer_list<Logger*>{&csv, &json, &board}) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i)
      logger->log(i, {{"train/loss", 1.0 / (i + 1)},
                      {"train/accuracy", 0.1 * i},
                      {"lr", 1e-3 / (i + 1)},
                      {"loss_scale", 65536}});
    logger->flush();
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    MESSAGE("microseconds per call of 4 numbers: ", taken.count() / calls);
    CHECK(taken.count() / calls < 100);  // also with sanitizers and on busy machines
  }
}

}  // namespace
}  // namespace halftone::train

// Records of a training, without a Trainer: rows, the last numbers and their checkpoint, notes for
// users.

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

// The Trainer's output: the line on a terminal and in a pipe, three log files that agree, also over
// a restart, and the summary of the model.

namespace halftone::test::trainer_logs_test {
namespace {

namespace fs = std::filesystem;
using train::Trainer;
using train::TrainerOptions;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

using Records = std::vector<std::pair<int64_t, std::map<std::string, double>>>;

Records from_csv(const fs::path& path) {
  Records records;
  std::vector<std::string> names;
  for (const std::string& line : lines_of(read_file(path))) {
    std::vector<std::string> cells;
    std::istringstream row(line + ',');
    for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
    if (names.empty()) {
      names = cells;
      continue;
    }
    std::map<std::string, double> numbers;
    for (std::size_t i = 2; i < cells.size(); ++i)
      if (!cells[i].empty()) numbers[names[i]] = std::stod(cells[i]);
    records.emplace_back(std::stoll(cells[0]), numbers);
  }
  return records;
}

Records from_json_lines(const fs::path& path) {
  Records records;
  for (const std::string& line : lines_of(read_file(path))) {
    std::map<std::string, double> numbers;
    const auto object = nlohmann::json::parse(line);
    for (const auto& [name, value] : object.items())
      if (name != "step" && name != "time") numbers[name] = value.get<double>();
    records.emplace_back(object["step"].get<int64_t>(), numbers);
  }
  return records;
}

/// Reads all event files of a directory, in the order of their names.
Records from_tensorboard(const fs::path& directory) {
  Records records;
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) files.insert(entry.path());
  for (const fs::path& file : files)
    for (const Event& event : read_events(read_file(file))) {
      if (event.scalars.empty()) continue;
      records.emplace_back(
          event.step, std::map<std::string, double>(event.scalars.begin(), event.scalars.end()));
    }
  return records;
}

TrainerOptions logging(const fs::path& directory, int64_t steps) {
  return {.precision = "16-mixed",
          .max_steps = steps,
          .clip_norm = 1,
          .directory = directory,
          .resume = true,
          .json_lines = true,
          .tensorboard = true,
          .log_every_steps = 2};
}

TEST_CASE("Trainer: CSV, JSON lines and TensorBoard agree, and a restart continues them") {
  const TemporaryDirectory directory;
  {
    TrainerRun whole(logging(directory / "whole", 12));
    whole.trainer.fit(trainer_loader(), trainer_loader());
  }
  for (const int64_t steps : {7, 12}) {
    TrainerRun part(logging(directory / "parts", steps));
    part.trainer.fit(trainer_loader(), trainer_loader());
  }
  const Records expected = from_csv(directory / "whole/metrics.csv");
  REQUIRE(expected.size() == 7);  // steps 2, 4, 5 (an epoch's end), 6, 8, 10, 12
  CHECK(expected[0].second.size() == 4);
  for (const char* name :
       {"train/loss", "train/loss_scale", "train/skipped_steps", "train/gradient_norm"})
    CHECK(expected[0].second.contains(name));
  for (const char* name : {"train/loss_epoch", "train/top1_epoch", "val/loss", "val/top1", "epoch"})
    CHECK(expected[2].second.contains(name));
  for (const char* run : {"whole", "parts"}) {
    const fs::path at = directory / run;
    CHECK(from_csv(at / "metrics.csv") == expected);
    CHECK(from_json_lines(at / "metrics.jsonl") == expected);
    const Records board = from_tensorboard(at / "tensorboard");
    REQUIRE(board.size() == expected.size());
    for (std::size_t i = 0; i < board.size(); ++i) {
      CHECK(board[i].first == expected[i].first);
      for (const auto& [name, value] : expected[i].second)
        CHECK(board[i].second.at(name) == double(float(value)));
    }
  }
}

TEST_CASE("Trainer: on a terminal one line within 80 columns, with metrics, scale, skipped steps") {
  const Variable term("TERM", "xterm"), no_color("NO_COLOR", nullptr);
  if (!has_terminals()) return;
  Terminal terminal(80);
  TrainerCase c;
  std::string bytes;
  const auto hooks = std::make_shared<Hooks>();
  hooks->step_end = [&](Trainer&) { bytes += terminal.arrived(); };
  Trainer trainer(c.task(), c.adamw,
                  {.precision = "16-mixed",
                   .max_epochs = 2,
                   .model_summary = false,
                   .output = terminal.file(),
                   .callbacks = {hooks}});
  trainer.fit(trainer_loader(), trainer_loader());
  bytes += terminal.arrived();
  std::size_t widest = 0;
  const auto lines = screen(bytes, widest);
  INFO(bytes);
  CHECK(widest <= 79);
  REQUIRE(lines.size() == 5);
  CHECK(lines[0].starts_with("epoch 1/2  step 5/5  loss "));
  for (const char* part : {"  top1 ", "  scale 65536", "  skipped 0"})
    CHECK(contains(lines[0], part));
  CHECK(lines[1].starts_with("  validation  loss "));
  CHECK(lines[2].starts_with("epoch 2/2  step 5/5  loss "));
}

TEST_CASE("Trainer: in a pipe whole lines, and silence on request") {
  const TemporaryDirectory directory;
  const auto printed = [&](TrainerOptions options) {
    std::FILE* const file = std::fopen((directory / "out").c_str(), "w");
    options.output = file, options.max_epochs = 1, options.log_every_steps = 2;
    TrainerCase c;
    Trainer(c.task(), c.adamw, options).fit(trainer_loader(), trainer_loader());
    std::fclose(file);
    return read_file(directory / "out");
  };
  const std::string text = printed({});
  INFO(text);
  CHECK(!contains(text, "\r"));
  CHECK(!contains(text, "\33"));
  CHECK(contains(text, "epoch 1/1  step 2/5  loss "));
  CHECK(contains(text, "epoch 1/1  step 5/5  loss "));
  CHECK(contains(text, "\n  validation  loss "));
  CHECK(contains(text, "> fp32 "));
  CHECK(printed({.progress_bar = false, .model_summary = false}).empty());
  const std::string summary = printed({.progress_bar = false});
  CHECK(text.starts_with(summary));
}

TEST_CASE("model_summary: parts, parameters, bytes per strategy") {
  TrainerCase c(1, 1024);
  c.model[4].set_requires_grad(false);
  const std::string text = train::model_summary(c.model, c.adamw, amp::Policy::named("o2-bf16"));
  const auto lines = lines_of(text);
  INFO(text);
  REQUIRE(lines.size() == 8 + amp::Policy::names().size());
  CHECK(lines[0] == "  0                Linear                      13312");
  CHECK(lines[1] == "  1                BatchNorm1d                  2048");
  CHECK(lines[5] ==
        "Sequential                                     19460 parameters, 4100 of them "
        "frozen");
  // Linear 0: 13312 elements of 2 + 4 bytes, gradient 2, state 8; the norm's 2048 of f32.
  CHECK(lines[8] == "> o2-bf16               0.04      0.07      0.03      0.12      0.26");
}

}  // namespace
}  // namespace halftone::test::trainer_logs_test

// The progress line in a pseudo-terminal and in a file: its text, its width, its frequency.

namespace halftone::train {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::screen;
using test::Terminal;
using test::Variable;
using Clock = std::chrono::steady_clock;

std::size_t count(const std::string& text, char c) {
  return std::size_t(std::count(text.begin(), text.end(), c));
}

TEST_CASE("a status line has the parts that fit, and never more") {
  const ProgressField fields[] = {
      {"loss", 0.45678}, {"accuracy", 0.9312, Shown::percent}, {"loss scale", 65536, Shown::count}};
  const ProgressState state{.epoch = 2,
                            .epochs = 5,
                            .step = 120,
                            .steps = 4690,
                            .rate = 12345.6,
                            .seconds_left = 3725,
                            .unit = "images",
                            .fields = fields};
  const std::string all =
      "epoch 2/5  step  120/4690  loss 0.4568  accuracy 93.12 %  loss scale 65536  "
      "12346 images/s  ETA 1:02:05";
  CHECK(status_line(state) == all);
  for (int64_t columns = 0; columns < 200; ++columns)
    CHECK(int64_t(status_line(state, columns, false).size()) <= columns);
  CHECK(status_line(state, int64_t(all.size()), false) == all);
  CHECK(contains(status_line(state, int64_t(all.size()) + 32, false), "4690  [....."));
  CHECK(status_line(state, 93, false) == all.substr(0, all.find("  12346")) + "  ETA 1:02:05");
  CHECK(status_line(state, 79, false) == all.substr(0, all.find("  12346")));
  CHECK(status_line(state, 60, false) == all.substr(0, all.find("  loss scale")));
  CHECK(status_line(state, 30, false) == all.substr(0, all.find("  loss")));
  const std::string colored = status_line(state, 200, true);
  std::size_t widest = 0;
  CHECK(screen(colored, widest)[0] == status_line(state, 200, false));
  CHECK(colored != status_line(state, 200, false));
}

TEST_CASE("on a terminal one line is redrawn, ten times a second at most, within the window") {
  const Variable term("TERM", "xterm"), no_color("NO_COLOR", nullptr);
  if (!test::has_terminals()) return;
  Terminal terminal(100);
  std::string bytes;
  int described = 0;
  const auto start = Clock::now();
  {
    ProgressBar bar({.epochs = 2, .steps_per_epoch = 60, .output = terminal.file()});
    CHECK(bar.live());
    for (int epoch = 0; epoch < 2; ++epoch) {
      bar.begin_epoch();
      for (int step = 0; step < 60; ++step) {
        std::this_thread::sleep_for(10ms);
        bar.step(32, [&](const auto& show) {
          show("loss", 1.0 / (step + 1)), show("skipped", 3, Shown::count), ++described;
        });
        bytes += terminal.arrived();
      }
      bar.note("validated");
    }
  }
  bytes += terminal.arrived();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  std::size_t widest = 0;
  const auto lines = screen(bytes, widest);
  INFO(bytes);
  REQUIRE(lines.size() == 5);
  CHECK(contains(lines[0], "epoch 1/2  step 60/60  ["));
  CHECK(contains(lines[0], "#]  loss 0.0167  skipped 3  "));
  CHECK(contains(lines[0], " samples/s  ETA 0:0"));
  CHECK(lines[1] == "validated");
  CHECK(contains(lines[2], "epoch 2/2  step 60/60  ["));
  CHECK(lines[3] == "validated");
  CHECK(lines[4].empty());
  CHECK(widest == 99);
  CHECK(contains(bytes, "\33[32m"));
  const auto drawn = count(bytes, '\r');
  CHECK(drawn >= 6);
  CHECK(double(drawn) <= 10 * seconds + 3);
  CHECK(std::size_t(described) == drawn);
}

TEST_CASE("the line follows the window, notes are above it, colors can be refused") {
  const Variable term("TERM", "xterm"), no_color("NO_COLOR", "1");
  if (!test::has_terminals()) return;
  Terminal terminal(120);
  std::size_t widest = 0;
  ProgressBar bar({.steps_per_epoch = 1000, .output = terminal.file()});
  const auto draw = [&] {
    std::this_thread::sleep_for(110ms);
    bar.step(1, [](const auto& show) { show("loss", 0.5), show("accuracy", 0.5); });
    return terminal.arrived();
  };
  bar.begin_epoch();
  screen(draw(), widest);
  CHECK(widest > 60);
  terminal.resize(24);
  const std::string narrow = draw();
  CHECK(screen(narrow, widest)[0] == "epoch 1  step    2/1000");
  terminal.resize(0);  // one without a known width
  const std::string wide = draw();
  screen(wide, widest);
  CHECK(widest == 79);
  CHECK(!contains(wide, "\33[32m"));
  bar.note("saved");
  const auto lines = screen(wide + terminal.arrived() + draw(), widest);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] == "saved");
  CHECK(contains(lines[1], "step    4/1000"));
  bar.finish();
  bar.finish();
  CHECK(terminal.arrived() == "\n");
}

TEST_CASE("a dumb terminal gets whole lines") {
  const Variable term("TERM", "dumb");
  if (!test::has_terminals()) return;
  Terminal terminal(80);
  ProgressBar bar({.steps_per_epoch = 2, .output = terminal.file()});
  CHECK(!bar.live());
  bar.begin_epoch();
  bar.step(), bar.step();
  const std::string bytes = terminal.arrived();
  CHECK(!contains(bytes, "\r"));
  CHECK(count(bytes, '\n') == 1);
}

TEST_CASE("in a file there are whole lines at the interval and at the epoch's end") {
  const test::TemporaryDirectory directory;
  const auto path = directory / "log";
  std::FILE* const file = std::fopen(path.c_str(), "w");
  {
    ProgressBar bar({.epochs = 3, .steps_per_epoch = 25, .interval = 10, .output = file});
    CHECK(!bar.live());
    bar.begin_epoch(2, 15);  // resumed
    for (int step = 15; step < 25; ++step)
      bar.step(1, [](const auto& show) { show("loss", 2e-5), show("norm", 0); });
    bar.note("validated");
    bar.begin_epoch();
    bar.step();
  }
  std::fclose(file);
  const std::string text = test::read_file(path);
  INFO(text);
  CHECK(count(text, '\n') == 3);
  CHECK(text.starts_with("epoch 2/3  step 20/25  loss 2.000e-05  norm 0.0000  "));
  CHECK(contains(text, "\nepoch 2/3  step 25/25  loss"));
  CHECK(text.ends_with("\nvalidated\n"));
  CHECK(!contains(text, "\33"));
  CHECK(!contains(text, "\r"));
}

TEST_CASE("an unknown number of steps has no end") {
  const ProgressState state{.epoch = 1, .step = 70, .rate = 2.5, .unit = "tokens", .fields = {}};
  CHECK(status_line(state, 80, false) == "epoch 1  step 70  2.50 tokens/s");
  CHECK(test::message_of<UsageError>([] { ProgressBar bar({.interval = 0}); }) != "");
}

TEST_CASE("a step that draws nothing costs far less than a microsecond") {
  const Variable term("TERM", "xterm");
  if (!test::has_terminals()) return;
  Terminal terminal(80);
  const test::TemporaryDirectory directory;
  std::FILE* const file = std::fopen((directory / "log").c_str(), "w");
  const auto cost = [](const ProgressOptions& options) {
    ProgressBar bar(options);
    bar.begin_epoch();
    constexpr int steps = 20000;
    const auto start = Clock::now();
    for (int i = 0; i < steps; ++i) bar.step(1, [](const auto& show) { show("loss", 1); });
    return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / steps;
  };
  const double live = cost({.output = terminal.file()}),
               piped = cost({.interval = 1 << 30, .output = file});
  std::fclose(file);
  MESSAGE("nanoseconds per step: terminal ", live, ", file ", piped);
  CHECK(live < 5000);  // also with sanitizers and on busy machines
  CHECK(piped < 5000);
}

}  // namespace
}  // namespace halftone::train
