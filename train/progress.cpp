// The progress line, and the summary of a model.
#include <halftone/train/progress.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include <unistd.h>

#include <sys/ioctl.h>

#include <halftone/amp/policy.h>
#include <halftone/core/error.h>
#include <halftone/core/files.h>
#include <halftone/train/loggers.h>
#include <halftone/train/task.h>

namespace halftone::train {

// Text only: widths in columns, and numbers with the fewest useful digits.

namespace {

constexpr int64_t gap = 2, narrowest_bar = 10, widest_bar = 30;

template <class... Values> std::string printed(const char* format, Values... values) {
  const PlainPrintf scope;
  char text[64];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

std::string counts_text(const ProgressState& s) {
  std::string text;
  if (s.epochs > 0) text = printed("epoch %lld/%lld  ", (long long)s.epoch, (long long)s.epochs);
  else if (s.epoch > 0) text = printed("epoch %lld  ", (long long)s.epoch);
  if (s.steps == 0) return text + printed("step %lld", (long long)s.step);
  const int digits = int(std::to_string(s.steps).size());
  return text + printed("step %*lld/%lld", digits, (long long)s.step, (long long)s.steps);
}

std::string time_text(double seconds) {
  const long long whole = std::llround(seconds);
  const long long minutes = whole / 60, hours = minutes / 60;
  if (hours > 0) return printed("ETA %lld:%02lld:%02lld", hours, minutes % 60, whole % 60);
  return printed("ETA %lld:%02lld", minutes, whole % 60);
}

/// Appends the part if it fits.
bool add(std::string& line, const std::string& part, int64_t columns) {
  if (int64_t(line.size() + part.size()) + gap > columns) return false;
  line += std::string(gap, ' ') + part;
  return true;
}

std::string bar(const ProgressState& s, int64_t columns, bool color) {
  const int64_t inside = std::min(columns, widest_bar) - 2;
  const double share = std::clamp(double(s.step) / double(s.steps), 0.0, 1.0);
  const auto full = std::size_t(share * double(inside));
  const std::string done(full, '#'), left(std::size_t(inside) - full, '.');
  return color ? "[\33[32m" + done + "\33[0m" + left + "]" : "[" + done + left + "]";
}

}  // namespace

std::string shown_text(double x, Shown shown) {
  const double size = std::abs(x);
  if (shown == Shown::percent) return printed("%5.2f %%", 100 * x);
  if (shown == Shown::count) return printed(size < 1e9 ? "%.0f" : "%.3g", x);
  return printed(size == 0 || (size >= 1e-3 && size < 1e4) ? "%.4f" : "%.3e", x);
}

std::string status_line(const ProgressState& s, int64_t columns, bool color) {
  std::string line = counts_text(s);
  const auto cut = std::size_t(std::max<int64_t>(columns, 0));
  if (line.size() > cut) return line.substr(0, cut);
  // Adds the parts in the order of their importance, then puts them in reading order.
  const std::size_t head = line.size();
  for (const ProgressField& field : s.fields)
    if (!add(line, std::string(field.name) + " " + shown_text(field.value, field.shown), columns))
      return line;
  std::string eta;
  if (s.seconds_left >= 0) add(eta, time_text(s.seconds_left), columns - int64_t(line.size()));
  if (s.rate > 0)
    add(line, printed("%.*f ", s.rate < 10 ? 2 : 0, s.rate) + std::string(s.unit) + "/s",
        columns - int64_t(eta.size()));
  line += eta;
  const int64_t left = columns - int64_t(line.size()) - gap;
  if (s.steps > 0 && left >= narrowest_bar && columns < std::numeric_limits<int64_t>::max())
    line.insert(head, std::string(gap, ' ') + bar(s, left, color));
  return line;
}

std::string status_line(const ProgressState& state) {
  return status_line(state, std::numeric_limits<int64_t>::max(), false);
}

// Shows the progress of an epoch in one live line, or in whole lines without a terminal.

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

// The tables of a model: its parts, and the bytes that each strategy would need.

namespace {

template <class... Values> void print(std::string& to, const char* format, Values... values) {
  const PlainPrintf scope;
  char line[160];
  std::snprintf(line, sizeof line, format, values...);
  to += line;
}

double mebibytes(int64_t bytes) { return double(bytes) / 1048576; }

}  // namespace

std::string model_summary(nn::Module& model, optim::Optimizer& optimizer, const amp::Policy& in_use,
                          int ranks) {
  std::string text;
  int64_t frozen = 0;
  for (const Tensor& x : model.parameters()) frozen += x.requires_grad() ? 0 : x.numel();
  for (const auto& [name, module] : model.named_modules())
    if (!name.empty() && name.find('.') == std::string::npos)
      print(text, "  %-16.40s %-20.40s %12lld\n", name.c_str(), class_name(typeid(*module)).c_str(),
            static_cast<long long>(module->parameter_count()));
  print(text, "%-39.60s %12lld parameters, %lld of them frozen\n\n",
        class_name(typeid(model)).c_str(), static_cast<long long>(model.parameter_count()),
        static_cast<long long>(frozen));
  print(text, "%-18s%10s%10s%10s%10s%10s\n", ranks > 1 ? "MiB, of a rank" : "MiB", "weights",
        "companion", "gradients", "optimizer", "sum");
  const auto row = [&](const char* mark, const amp::Policy& strategy) {
    const amp::StrategyBytes bytes = amp::predicted_bytes(strategy, model, optimizer, ranks);
    print(text, "%s %-16.40s%10.2f%10.2f%10.2f%10.2f%10.2f\n", mark, strategy.name.c_str(),
          mebibytes(bytes.parameter), mebibytes(bytes.companion), mebibytes(bytes.gradient),
          mebibytes(bytes.optimizer_state), mebibytes(bytes.total()));
  };
  row(">", in_use);
  for (const std::string_view name : amp::Policy::names())
    if (name != in_use.name) row(" ", amp::Policy::named(name));
  return text;
}

}  // namespace halftone::train
