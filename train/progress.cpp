// Text only: widths in columns, and numbers with the fewest useful digits.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include <halftone/core/error.h>
#include <halftone/train/logging/status_line.h>

namespace halftone::train {

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

}  // namespace halftone::train
