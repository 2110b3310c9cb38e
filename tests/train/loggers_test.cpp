// The three log files agree with each other, survive resumption and crashes, and report errors.
#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>

#include <sys/resource.h>
#include <signal.h>

#include <halftone/train/loggers.h>
#include <nlohmann/json.hpp>

#include "log_readers.h"
#include "support.h"

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
