// This program's own commands in processes, several at once. A crash of one does not end the
// others, and all of them end with the process that started them, also when it is killed.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace halftone::lab {

class Processes {
 public:
  /// At most `jobs` processes at once. Errors are in the name of `op`.
  Processes(std::string_view op, int jobs) : op_(op), jobs_(jobs) {}
  /// Ends what still runs.
  ~Processes() { end_all(); }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  bool full() const { return int(running_.size()) >= jobs_; }
  bool empty() const { return running_.empty(); }
  /// Starts `halftone-lab WORD...`; its output goes to `log`. Throws UsageError if the system
  /// starts no process.
  void start(std::size_t id, const std::vector<std::string>& words,
             const std::filesystem::path& log);
  struct Ended {
    std::size_t id;
    bool succeeded;  // exit code 0
  };
  static constexpr std::size_t none = ~std::size_t(0);
  /// Waits until a process ends. Returns the id `none` after `seconds`; nullopt if a signal asks
  /// this program to stop.
  std::optional<Ended> wait(double seconds = 1e9);
  /// Sends SIGTERM to all and waits for them.
  void end_all();

 private:
  std::string op_;
  int jobs_;
  std::map<pid_t, std::size_t> running_{};
};

/// Notes SIGINT, SIGTERM and SIGHUP during its lifetime, so that waiting ends.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// Whether one of them has come since the last construction.
  static bool came();

 private:
  struct Before;
  std::unique_ptr<Before> before_;
};

/// In a process that Processes started: asks the system for SIGTERM when its parent ends. Otherwise
/// does nothing.
void end_with_parent();

/// Returns the last line of a log, without hints to --help: the error of a program that failed.
std::string last_line(std::string_view op, const std::filesystem::path& log);

/// "about 3 min left"
std::string time_left(double seconds);

}  // namespace halftone::lab
