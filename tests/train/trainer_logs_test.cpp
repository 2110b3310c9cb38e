// The Trainer's output: the line on a terminal and in a pipe, three log files that agree, also over
// a restart, and the summary of the model.
#include "trainer_cases.h"

#include <cstdio>
#include <set>
#include <sstream>

#include <halftone/train/progress.h>
#include <nlohmann/json.hpp>

#include "log_readers.h"
#include "terminal.h"

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
  const std::string text = train::model_summary(c.model, c.adamw, amp::Strategy::named("o2-bf16"));
  const auto lines = lines_of(text);
  INFO(text);
  REQUIRE(lines.size() == 8 + amp::Strategy::names().size());
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
