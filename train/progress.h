// The display of a training on a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/policy.h>
#include <halftone/nn/module.h>
#include <halftone/optim/optimizer.h>

namespace halftone::train {

// The text of a progress line, cut to a width. Pure functions: ProgressBar handles the terminal.

enum class Shown {
  number,   // 0.4321; below 0.001 and from 10,000 as 4.321e-05
  percent,  // for a share: 0.9312 is 93.12 %
  count,    // for skipped steps, a loss scale: without decimals; from 10^9 as 4.29e+09
};

/// Returns the text of a value, such as "0.4321", "93.12 %" or "65536".
std::string shown_text(double value, Shown shown);

struct ProgressField {
  std::string_view name;
  double value;
  Shown shown = Shown::number;
};

struct ProgressState {
  int64_t epoch = 0, epochs = 0;          // from 1; epochs 0: unknown
  int64_t step = 0, steps = 0;            // done in this epoch, and its number of steps; steps 0:
                                          // unknown
  double rate = 0;                        // units per second
  double seconds_left = -1;               // negative: unknown
  std::string_view unit = "samples";      // ASCII
  std::span<const ProgressField> fields;  // the most important first; names in ASCII
};

/// Returns one line of at most `columns` characters: counts, fields, rate, time left, and a bar if
/// `steps` is known and at least 10 columns are free. If parts do not fit, leaves out the bar
/// first, then the rate, the time left, and the fields, beginning with the last. `color` adds
/// escape sequences, which take no columns.
std::string status_line(const ProgressState& state, int64_t columns, bool color);
/// Returns the line with all parts except the bar, for files and pipes.
std::string status_line(const ProgressState& state);

// Shows the progress of a training. On a terminal it is one line that redraws itself in place, at
// most ten times a second, as wide as the window. In a file or a pipe it is whole lines, one every
// n steps. Each epoch's last line stays. Colors are off if NO_COLOR is set (no-color.org).
//
//   train::ProgressBar progress({.epochs = 5, .steps_per_epoch = loader.size()});
//   progress.begin_epoch();
//   progress.step(images.size(0), [&](auto& show) {  // called only if something is drawn,
//     show("loss", loss.value());                    // so that a GPU seldom has to wait for it
//     show("loss scale", scaler.scale_value(), train::Shown::count);
//   });

struct ProgressOptions {
  int64_t epochs = 0;            // 0: unknown
  int64_t steps_per_epoch = 0;   // 0: unknown, so there is neither a bar nor the time left
  int64_t interval = 100;        // steps between two lines, if the output is not a terminal
  const char* unit = "samples";  // what step() counts
  std::FILE* output = stdout;    // stays open
};

class ProgressBar {
 public:
  /// Checks whether the output is a terminal; under TERM=dumb none counts as one. Throws UsageError
  /// if a number is negative, or the interval below 1.
  explicit ProgressBar(const ProgressOptions& options = {});
  /// Ends an unfinished line.
  ~ProgressBar() { finish(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Begins the next epoch.
  void begin_epoch() { begin_epoch(state_.epoch + 1, 0); }
  /// Begins epoch `epoch`, counted from 1. A resumed training has done `steps_done` of its steps.
  void begin_epoch(int64_t epoch, int64_t steps_done);

  /// Counts one step of `count` samples. `describe(show)` calls show(name, value) or show(name,
  /// value, Shown) for each number, the most important first; names must outlive the call.
  template <class Describe> void step(int64_t count, const Describe& describe) {
    if (!advance(count)) return;
    fields_.clear();
    const auto show = [this](std::string_view name, double value, Shown shown = Shown::number) {
      fields_.push_back({name, value, shown});
    };
    describe(show);
    draw();
  }
  void step(int64_t count = 1) {
    step(count, [](const auto&) {});
  }

  /// Writes a line above the live line (the one that redraws itself), which the next step redraws.
  void note(std::string_view text);
  /// Leaves the live line as it is; the next output begins a new line.
  void finish();

  /// Returns whether there is a live line, because the output is a terminal.
  bool live() const { return live_; }

 private:
  using Clock = std::chrono::steady_clock;

  /// Counts a step of `count` samples. Returns whether it is time to draw.
  bool advance(int64_t count) {
    ++state_.step, units_ += count;
    if (state_.step == state_.steps) return true;
    if (!live_) return state_.step % options_.interval == 0;
    return Clock::now() - drawn_ >= std::chrono::milliseconds(100);
  }
  void draw();
  void print(const std::string& text);

  ProgressOptions options_;
  ProgressState state_{};
  std::vector<ProgressField> fields_{};  // reused, to keep its memory
  bool live_ = false, color_ = false;
  bool unfinished_ = false;  // a live line is visible without its line break
  int64_t units_ = 0, steps_before_ = 0;
  Clock::time_point epoch_start_{}, drawn_{};
};

// A summary of a model: its parts, their parameters, and the bytes that each strategy would need.

/// Returns a line per direct child of the model with its parameters, and a line per strategy with
/// the MiB that it would need, without activations. An arrow marks the strategy in use. With
/// several ranks, the bytes are those of the rank that stores most. Like Lightning's ModelSummary.
std::string model_summary(nn::Module& model, optim::Optimizer& optimizer, const amp::Policy& in_use,
                          int ranks = 1);

}  // namespace halftone::train
