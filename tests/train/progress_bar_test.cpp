// The progress line in a pseudo-terminal and in a file: its text, its width, its frequency.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include <halftone/train/progress.h>

#include "support.h"
#include "terminal.h"

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
