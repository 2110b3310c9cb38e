// Trains workloads under policies from the same seeds, in this process or in several, and writes a
// folder for each run.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include <halftone/core/json_value.h>
#include <halftone/lab/workload.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>
#include <halftone/train/trainer.h>

namespace halftone::lab {

struct RunResult;

// A study is a list of cells, and seeds. A job is the training of one cell from one seed, in this
// process or in one of its own.

/// The most steps of a run.
inline constexpr int64_t most_steps = int64_t(1) << 40;

/// How a training is made, apart from its policy and its seed.
struct Setup {
  std::string workload{};
  int64_t steps = 300;
  Choices choices{};
  int64_t probe = 0;       // telemetry every n steps; 0: none
  int64_t probe_from = 0;  // first step with telemetry: delayed scales need a step to begin
  int64_t trace = 0;       // hashes of all tensors every n steps, for `diff`; 0: none
};

struct Cell {
  std::string name{};  // label_of(policy), for folders, tables and records
  amp::Policy policy{};
  Setup setup{};
};

/// Returns a policy's name, followed by its hash if another policy in `all` has the same name.
std::string label_of(const amp::Policy& policy, std::span<const amp::Policy> all);

/// Returns a cell for each policy: a file, or the name of a strategy or a shipped policy. Throws
/// UsageError if one is given twice, and what reading it throws.
std::vector<Cell> read_cells(const std::vector<std::string>& policies, const Setup& setup);

/// If the cell's policy has rules, runs one batch forward and backward under them. Throws what the
/// first step would throw, such as UsageError for a rule that matches nothing in the model. Call it
/// before a series of trainings, so that none fails in the middle.
void require_fit(const Cell& cell, const std::vector<NamedWorkload>& own);

struct Study {
  std::vector<Cell> cells{};
  std::vector<uint64_t> seeds{0};
  std::filesystem::path out{};  // a folder per run; empty: no files
  bool set_aside = false;       // moves files of an unfinished run to old-1/ in its folder
  /// Called with the result of each run, also of a run that had finished before and is only read.
  std::function<void(const RunResult&)> after{};
};

struct Job {
  Cell cell{};
  uint64_t seed = 0;
  std::filesystem::path folder{};  // empty: no files
  bool set_aside = false;
  std::size_t order = 0;  // of the cell in the study
};

/// Returns the job of training the cell from `seed`, with the folder run_name() in `out`.
Job job_of(const Cell& cell, uint64_t seed, const std::filesystem::path& out);

/// The results of one training. Its folder, if it has one, holds policy.json, resolved.json,
/// metrics.jsonl, probe.jsonl, switches.jsonl, summary.json (docs/telemetry.md).
struct RunResult {
  std::string policy{};
  uint64_t seed = 0;
  double loss = 0;             // validation_loss, or late_loss without validation data
  double late_loss = 0;        // mean of the last tenth of the steps
  double validation_loss = 0;  // NaN without validation data, like validation_accuracy
  double validation_accuracy = 0;
  double milliseconds = 0;  // per step, without validation
  int64_t skipped = 0;
  double worst_underflow = 0, least_sqnr = 0;
  std::string worst_site{}, least_sqnr_site{};
  policy::UpdateSums updates{};  // of all parameters in the sampled steps, for weights as stored
  std::string policy_hash{}, resolved_hash{}, weights_hash{};
  std::string summary{};   // content of summary.json
  bool was_there = false;  // the run finished earlier and was only read
};

/// Runs all trainings one after the other, and returns their results. Runs that are finished in
/// `out` are only read. Checks all folders before the first training. Writes a line for each to
/// `progress`. After a signal, returns only the results so far. Stochastic rounding draws from the
/// policy's seed plus a multiple of the run's. Throws what policies, workloads and the Trainer
/// throw. Throws UsageError for a folder with a run of other settings, or with files of an
/// unfinished run (unless `set_aside` is true).
std::vector<RunResult> run(const Study& study, const std::vector<NamedWorkload>& own,
                           std::ostream& progress);

/// Runs jobs in new processes of this program, which share its number of threads. A crash of one
/// does not end the others. All end with this program, also when it is killed. A process reads its
/// job from a file next to its log.
class Jobs {
 public:
  /// At most `at_once` processes run at a time. Errors are "[op] ...".
  Jobs(std::string_view op, int at_once) : op_(op), at_once_(at_once) {}
  /// Ends the processes that still run.
  ~Jobs();
  Jobs(const Jobs&) = delete;
  Jobs& operator=(const Jobs&) = delete;

  /// Adds a job, which must have a folder. `log`: the file for its output; the job itself goes to a
  /// file of this name with ".json". Returns its number, from 0.
  std::size_t add(Job job, std::filesystem::path log);
  struct Ended {
    std::size_t number;
    std::optional<RunResult> result;  // absent: it failed
    std::string problem;              // the last line of its log
  };
  /// Starts jobs, waits until one ends, and returns it. Returns nullopt if all have ended, after
  /// `seconds`, or after a signal to stop. Throws UsageError if a process cannot start.
  std::optional<Ended> next(double seconds = 1e9);
  /// Returns how many jobs have not ended.
  std::size_t left() const { return waiting_.size() + running_.size(); }
  /// Returns whether a signal has asked this program to stop.
  static bool stopped() { return train::StopSignals::received() != 0; }

 private:
  struct Entry {
    Job job;
    std::filesystem::path log;
  };
  void start(std::size_t number);

  train::StopSignals signals_{};
  std::string op_;
  int at_once_;
  std::vector<Entry> entries_{};
  std::deque<std::size_t> waiting_{};
  std::map<pid_t, std::size_t> running_{};
};

/// The command of a process of Jobs: `halftone-lab job FILE`, which --help does not list.
inline constexpr std::string_view job_command = "job";
/// Runs the job of a file. Returns the exit code.
int run_job(const std::filesystem::path& file, const std::vector<NamedWorkload>& own);

/// In a process that Jobs started, asks the system to send it SIGTERM when its parent ends. In
/// other processes does nothing.
void end_with_parent();

/// Returns a text such as "about 3 min left".
std::string time_left(double seconds);

/// Returns the entries of a setup, for sweep.json and gate.json.
Json json_of(const Setup& setup);

/// Returns a line per policy: the mean loss over the seeds; its difference from the first policy,
/// paired by seed, with a 95 % interval (Student's t); the time; and the worst sites.
std::string table_of(const std::vector<RunResult>& runs);
/// Returns a line for each policy with too few seeds to detect a difference of 0.5 %.
std::string remarks_on(const std::vector<RunResult>& runs);
/// Returns {"format": 1, "runs": [the content of each summary.json]}.
std::string json_of(const std::vector<RunResult>& runs);

/// Parses "0..4", "0,3,7" or a mix. Throws UsageError for other texts and for repeated seeds.
std::vector<uint64_t> seeds_of(const std::string& text);

/// Returns the name of a run's folder: "gpt_tiny-mxfp8-0".
std::string run_name(const std::string& workload, const std::string& policy, uint64_t seed);

}  // namespace halftone::lab
