// Writes one row, with one time, to all loggers. A checkpoint stores each number with its step.
#include <halftone/train/logging/records.h>

#include <algorithm>
#include <chrono>

#include <halftone/core/error.h>
#include <halftone/core/named_tensors.h>
#include <halftone/train/logging/for_people.h>
#include <halftone/train/numbers.h>

namespace halftone::train {

void Records::log(std::string_view name, double value, int64_t step) {
  check_log_name(name);
  const auto same = std::ranges::find(row_, name, &std::pair<std::string, double>::first);
  if (same != row_.end()) same->second = value;
  else row_.emplace_back(name, value);
  last_.insert_or_assign(std::string(name), Logged{value, step});
}

std::optional<double> Records::last(std::string_view name) const {
  const auto found = last_.find(name);
  return found == last_.end() ? std::nullopt : std::optional(found->second.value);
}

std::map<std::string, double> Records::last() const {
  std::map<std::string, double> all;
  for (const auto& [name, logged] : last_) all[name] = logged.value;
  return all;
}

double Records::metric(std::string_view name) const {
  if (const auto value = last(name)) return *value;
  std::vector<std::string_view> known;
  for (const auto& [other, logged] : last_) known.push_back(other);
  fail_unknown_name("Trainer", "metric", name, known);
}

void Records::write(int64_t step) {
  if (row_.empty()) return;
  const auto row = std::exchange(row_, {});
  std::vector<NamedNumber> numbers;
  numbers.reserve(row.size());
  for (const auto& [name, value] : row) numbers.push_back({name, value});
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  for (const auto& logger : loggers)
    logger->log({step, std::chrono::duration<double>(now).count(), numbers});
}

void Records::flush() {
  for (const auto& logger : loggers) logger->flush();
}

void Records::note(std::string_view text) {
  if (progress) progress->note(text);
}

void Records::tell(const std::string& text) {
  if (silent) return;
  if (progress) progress->note(text);
  else print_for_people(stderr, text + '\n');
}

namespace {
/// Returns a name whose order is that of the row.
std::string name_in_row(std::size_t place) {
  std::string digits = std::to_string(place);
  return "state.row." + std::string(6 - std::min<std::size_t>(digits.size(), 6), '0') + digits +
         '.';
}
}  // namespace

void Records::save(CheckpointState& state, bool with_row) const {
  for (std::size_t i = 0; with_row && i < row_.size(); ++i)
    state.numbers[name_in_row(i) + row_[i].first] = row_[i].second;
  for (const auto& [name, logged] : last_) {
    // Only numbers measured at this step may rank this checkpoint among the best.
    if (logged.step == state.step) state.numbers[name] = logged.value;
    state.numbers["state.metric.value." + name] = logged.value;
    state.numbers["state.metric.step." + name] = double(logged.step);
  }
}

void Records::restore(const CheckpointState& state) {
  row_.clear();  // a fit() may begin again
  for (const auto& [name, value] : part_of(state.numbers, "state.row."))
    if (const std::size_t point = name.find('.'); point != std::string::npos)
      row_.emplace_back(name.substr(point + 1), value);
  for (const auto& [name, value] : part_of(state.numbers, "state.metric.value."))
    last_[name] = {value, count_in(state.numbers, "state.metric.step." + name)};
}

}  // namespace halftone::train
