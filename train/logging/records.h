// What a training tells while it runs: numbers under names, to loggers in one row per step, and
// lines to people. The last number of each name stays known, also to a run that resumes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <halftone/train/checkpoints/checkpoint.h>
#include <halftone/train/logging/logger.h>
#include <halftone/train/logging/progress_bar.h>

namespace halftone::train {

class Records {
 public:
  /// Adds a number to the present row; of equal names the last counts. Throws as check_log_name().
  void log(std::string_view name, double value, int64_t step);
  /// The number that was logged last under a name; nothing if there is none.
  std::optional<double> last(std::string_view name) const;
  std::map<std::string, double> last() const;  // of every name
  /// The same, but throws UsageError, with the nearest name, if there is none.
  double metric(std::string_view name) const;

  std::vector<std::shared_ptr<Logger>> loggers{};  // who gets the rows
  /// Hands the row, if anything is in it, to every logger, and begins the next one.
  void write(int64_t step);
  void flush();

  std::optional<ProgressBar> progress{};  // where people look, if they do
  bool silent = false;                    // of a process that is not to speak to people
  /// A line for people, above the progress bar; without one nobody reads it.
  void note(std::string_view text);
  /// A note that must be seen where there is no progress bar, too.
  void tell(const std::string& text);

  /// What was logged last, into a checkpoint and back.
  void save(CheckpointState& state) const;
  void restore(const CheckpointState& state);

 private:
  struct Logged {
    double value;
    int64_t step;
  };
  std::vector<std::pair<std::string, double>> row_{};
  std::map<std::string, Logged, std::less<>> last_{};
};

}  // namespace halftone::train
