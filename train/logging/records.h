// The output of a running training: named numbers, one row per step, for loggers, and lines for
// people. The last number of each name stays available, also after a resume.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <halftone/train/checkpoints/checkpoint.h>
#include <halftone/train/logging/logger.h>
#include <halftone/train/progress.h>

namespace halftone::train {

class Records {
 public:
  /// Adds a number to the present row; for equal names the last counts. Throws as check_log_name().
  void log(std::string_view name, double value, int64_t step);
  /// Returns the last logged number of a name; nullopt if there is none.
  std::optional<double> last(std::string_view name) const;
  std::map<std::string, double> last() const;  // of every name
  /// Returns the same, but throws UsageError, with the nearest name, if there is none.
  double metric(std::string_view name) const;

  std::vector<std::shared_ptr<Logger>> loggers{};  // outputs of the rows
  /// Passes the row, if it has numbers, to every logger, and begins the next one.
  void write(int64_t step);
  void flush();

  std::optional<ProgressBar> progress{};  // absent: no progress bar
  bool silent = false;                    // true: this process writes nothing for people
  /// Writes a line for people above the progress bar; does nothing without one.
  void note(std::string_view text);
  /// Writes a note that must also be visible without a progress bar.
  void tell(const std::string& text);

  /// Saves the last numbers in a checkpoint, and restores them; `with_row`: the present row as well.
  void save(CheckpointState& state, bool with_row = false) const;
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
