// halftone-lab experiment: runs experiments and says whether they confirm their claims.
#pragma once

#include <string>

namespace halftone::lab {

struct ExperimentOptions {
  std::string name = "all";
  bool thorough = false;  // --long
  std::string json{};     // empty: none; -: standard output
};

/// Runs the experiments and prints to standard output. Returns the exit code: 1 if a check failed.
/// Throws UsageError for unknown names.
int run_experiment(const ExperimentOptions& options);

}  // namespace halftone::lab
