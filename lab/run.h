// Trains a workload under policies from the same seeds, and writes a folder for each run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include <halftone/lab/workloads/choices.h>
#include <halftone/policy/telemetry/update_probe.h>

namespace halftone::lab {

struct RunOptions {
  std::string workload{};
  std::vector<std::string> policies{};  // files, or names of strategies
  std::vector<uint64_t> seeds{0};
  int64_t steps = 300;
  int64_t probe = 0;  // telemetry every n steps; 0: none
  Choices choices{};
  std::filesystem::path out{};  // a folder per run; empty: no files
  bool set_aside = false;       // moves the files of an unfinished run in the folder to old-1/
};

/// One training. Its folder, if there is one: policy.json, resolved.json, metrics.jsonl,
/// probe.jsonl, summary.json (docs/telemetry.md).
struct RunResult {
  std::string policy{};
  uint64_t seed = 0;
  double loss = 0;          // of the validation data; without any, the mean of the last tenth of
                            // the steps
  double milliseconds = 0;  // per step, validation left out
  int64_t skipped = 0;
  double worst_underflow = 0, least_sqnr = 0;
  std::string worst_site{}, least_sqnr_site{};
  policy::UpdateSums updates{};  // of all parameters in the sampled steps, for weights as stored
  std::string policy_hash{}, resolved_hash{}, weights_hash{};
  std::string summary{};   // content of summary.json
  bool was_there = false;  // the run finished earlier and was only read
};

/// Runs all trainings one after the other, except those that are finished in `out`. Reports each to
/// `progress`. Throws what policies, workloads and the Trainer throw. Throws UsageError for a
/// folder with a run of other settings, or with files of an unfinished run (unless `set_aside` is
/// true).
std::vector<RunResult> run(const RunOptions& options, const std::vector<NamedWorkload>& own,
                           std::ostream& progress);

/// Returns a line per policy: the mean loss over the seeds; its difference from the first policy,
/// paired by seed, with a 95 % interval (Student's t); the time; and the worst sites.
std::string table_of(const std::vector<RunResult>& runs);

}  // namespace halftone::lab
