// Trainings of a workload under policies, from the same seeds, and what is left of each on disk.
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
  int64_t probe = 0;  // every so many steps; 0: no telemetry
  Choices choices{};
  std::filesystem::path out{};  // a folder per run; empty: no files
  bool set_aside = false;       // what an unfinished run left in its folder moves to old-1/
};

/// One training. Its folder, if there is one: policy.json, resolved.json, metrics.jsonl,
/// probe.jsonl, summary.json (docs/telemetry.md).
struct RunResult {
  std::string policy{};
  uint64_t seed = 0;
  double loss = 0;          // of the validation data; without any, of the last tenth of the steps
  double milliseconds = 0;  // per step, validation left out
  int64_t skipped = 0;
  double worst_underflow = 0, least_sqnr = 0;
  std::string worst_site{}, least_sqnr_site{};
  policy::UpdateSums updates{};  // of all parameters in the sampled steps, as they are stored
  std::string policy_hash{}, resolved_hash{}, weights_hash{};
  std::string summary{};   // what summary.json says
  bool was_there = false;  // finished before, and only read
};

/// Runs them one after the other, those that are finished in `out` excepted; tells `progress` of
/// each. Throws what policies, workloads and the Trainer throw; UsageError for a folder that has a
/// run of other settings, or the files of an unfinished one (unless `set_aside` is true).
std::vector<RunResult> run(const RunOptions& options, const std::vector<NamedWorkload>& own,
                           std::ostream& progress);

/// A line per policy: the mean loss over the seeds and, paired by seed, its difference from the
/// first policy with a 95 % interval (Student's t), time, and the worst sites.
std::string table_of(const std::vector<RunResult>& runs);

}  // namespace halftone::lab
