// Shows the progress of an epoch in one live line, or in whole lines without a terminal.
#include <halftone/train/progress.h>

#include <algorithm>

#include <sys/ioctl.h>
#include <unistd.h>

#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/train/logging/for_people.h>

namespace halftone::train {

namespace {

std::string_view environment(const char* name) {
  const char* const value = environment_variable(name);
  return value ? value : "";
}

/// Returns the window's present columns, because it may have been resized; 80 if the terminal does
/// not say.
int64_t columns_of(int terminal) {
  winsize size{};
  return ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

ProgressBar::ProgressBar(const ProgressOptions& options) : options_(options) {
  if (options.epochs < 0 || options.steps_per_epoch < 0 || options.interval < 1)
    fail<UsageError>("ProgressBar", "epochs ", options.epochs, ", steps ", options.steps_per_epoch,
                     ", interval ", options.interval, ". Use 0 for what is unknown, and 1 or more ",
                     "for the interval.");
  live_ = isatty(fileno(options.output)) && environment("TERM") != "dumb";
  color_ = live_ && environment("NO_COLOR").empty();
  state_.epochs = options.epochs, state_.steps = options.steps_per_epoch;
  state_.unit = options.unit;
  epoch_start_ = drawn_ = Clock::now();
}

void ProgressBar::begin_epoch(int64_t epoch, int64_t steps_done) {
  finish();
  state_.epoch = epoch, state_.step = steps_before_ = steps_done;
  units_ = 0;
  epoch_start_ = drawn_ = Clock::now();
}

void ProgressBar::draw() {
  const Clock::time_point now = Clock::now();
  drawn_ = now;
  const double seconds = std::max(std::chrono::duration<double>(now - epoch_start_).count(), 1e-9);
  state_.rate = double(units_) / seconds;
  // Estimates only training time; the time between epochs is unknown.
  const int64_t left = std::max<int64_t>(state_.epochs - state_.epoch, 0) * state_.steps +
                       state_.steps - state_.step;
  const double per_step = seconds / double(state_.step - steps_before_);
  state_.seconds_left = state_.steps > 0 && left >= 0 ? double(left) * per_step : -1;
  state_.fields = fields_;
  if (!live_) return print(status_line(state_) + '\n');
  // "\r" returns to the start of the line, "\33[K" erases the rest of a longer line. The last
  // column stays free, because some terminals break the line there.
  const int64_t columns = columns_of(fileno(options_.output)) - 1;
  unfinished_ = state_.step != state_.steps;
  print('\r' + status_line(state_, columns, color_) + "\33[K" + (unfinished_ ? "" : "\n"));
}

void ProgressBar::note(std::string_view text) {
  print((unfinished_ ? "\r\33[K" : "") + std::string(text) + '\n');
  unfinished_ = false;
}

void ProgressBar::finish() {
  if (unfinished_) print("\n");
  unfinished_ = false;
}

void ProgressBar::print(const std::string& text) { print_for_people(options_.output, text); }

}  // namespace halftone::train
