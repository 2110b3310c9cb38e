// Trainings of several policies from the same seeds, as a table of an experiment.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <halftone/lab/findings.h>
#include <halftone/lab/run.h>
#include <halftone/lab/statistics.h>
#include <halftone/policy/policy_file.h>

namespace halftone::lab {

/// A policy in a temporary file while the object exists, because run() reads policies from files.
class PolicyOnDisk {
 public:
  explicit PolicyOnDisk(policy::PolicyFile policy);
  ~PolicyOnDisk();
  PolicyOnDisk(const PolicyOnDisk&) = delete;
  PolicyOnDisk& operator=(const PolicyOnDisk&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// An experiment's trainings were stopped by a signal, so it has no result.
struct Stopped : Error {
  using Error::Error;
};

/// Runs all trainings, without files. Throws Stopped after SIGINT, SIGTERM or SIGHUP.
std::vector<RunResult> all_runs(const RunOptions& options);

/// Trains a workload under each policy from each seed. Pairs by seed have the same weights and the
/// same batches.
class PairedRuns {
 public:
  /// Prints the table: each policy's late loss, and its difference from the first policy's. Throws
  /// Stopped like all_runs().
  PairedRuns(Findings& found, const std::string& workload, const std::vector<std::string>& policies,
             std::size_t seeds, int64_t steps);

  /// Returns the relative difference of late losses from the policy in place `base`, with its 95 %
  /// interval.
  Interval difference(std::size_t policy, std::size_t base = 0) const;

 private:
  const RunResult& run(std::size_t policy, std::size_t seed) const;
  std::size_t policies_, seeds_;
  std::vector<RunResult> runs_;
};

/// Returns "+0.31 % +- 0.20 %".
std::string signed_percent(const Interval& interval);

}  // namespace halftone::lab
