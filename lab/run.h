// Runs of a policy on a workload, in this process or in several.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include <halftone/lab/workload.h>
#include <halftone/amp/probe.h>

namespace halftone::lab {

// This program's own commands in processes, several at once. A crash of one does not end the
// others, and all of them end with the process that started them, also when it is killed.

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

// Trains a workload under policies from the same seeds, and writes a folder for each run.

struct RunResult;

/// The most steps of a run.
inline constexpr int64_t most_steps = int64_t(1) << 40;

struct RunOptions {
  std::string workload{};
  std::vector<std::string> policies{};  // files, or names of strategies
  std::vector<uint64_t> seeds{0};
  int64_t steps = 300;
  int64_t probe = 0;       // telemetry every n steps; 0: none
  int64_t probe_from = 0;  // its first step: delayed scales need one to begin
  int64_t trace = 0;       // hashes of all tensors every n steps, for `diff`; 0: none
  Choices choices{};
  std::filesystem::path out{};  // a folder per run; empty: no files
  bool set_aside = false;       // moves the files of an unfinished run in the folder to old-1/
  /// Called after each run, finished ones included.
  std::function<void(const RunResult&)> after{};
};

/// One training. Its folder, if there is one: policy.json, resolved.json, metrics.jsonl,
/// probe.jsonl, summary.json (docs/telemetry.md).
struct RunResult {
  std::string policy{};
  uint64_t seed = 0;
  double loss = 0;             // validation_loss, or late_loss without validation data
  double late_loss = 0;        // mean of the last tenth of the steps
  double validation_loss = 0;  // NaN without validation data, like validation_accuracy
  double validation_accuracy = 0;
  double milliseconds = 0;  // per step, validation left out
  int64_t skipped = 0;
  double worst_underflow = 0, least_sqnr = 0;
  std::string worst_site{}, least_sqnr_site{};
  policy::UpdateSums updates{};  // of all parameters in the sampled steps, for weights as stored
  std::string policy_hash{}, resolved_hash{}, weights_hash{};
  std::string summary{};   // content of summary.json
  bool was_there = false;  // the run finished earlier and was only read
};

/// Runs all trainings one after the other, except those that are finished in `out`; all folders are
/// checked before the first. Reports each to `progress`. After a signal it returns what is
/// finished, with fewer results than policies times seeds. The run's seed changes the random
/// numbers of stochastic rounding: the policy's seed plus a multiple of the run's. Throws what
/// policies, workloads and the Trainer throw. Throws UsageError for a folder with a run of other
/// settings, or with files of an unfinished run (unless `set_aside` is true).
std::vector<RunResult> run(const RunOptions& options, const std::vector<NamedWorkload>& own,
                           std::ostream& progress);

/// Returns a line per policy: the mean loss over the seeds; its difference from the first policy,
/// paired by seed, with a 95 % interval (Student's t); the time; and the worst sites.
std::string table_of(const std::vector<RunResult>& runs);
/// Returns a line for each policy whose seeds are too few to tell a difference of 0.5 %.
std::string remarks_on(const std::vector<RunResult>& runs);
/// Returns {"format": 1, "runs": [the content of each summary.json]}.
std::string json_of(const std::vector<RunResult>& runs);

/// Parses "0..4", "0,3,7" or a mix. Throws UsageError for other texts and for repeated seeds.
std::vector<uint64_t> seeds_of(const std::string& text);

/// Returns the name of a run's folder: "gpt_tiny-mxfp8-0" for amp/policies/mxfp8.json and seed 0.
std::string run_name(const std::string& workload, const std::string& policy, uint64_t seed);

}  // namespace halftone::lab
