// halftone-lab experiment: runs experiments and says whether they found what was claimed.
#pragma once

#include <string>

namespace halftone::lab {

struct ExperimentOptions {
  std::string name = "all";
  bool thorough = false;  // --long
};

/// Prints to standard output; the exit code, 1 if a check missed. Throws UsageError for
/// unknown names.
int run_experiment(const ExperimentOptions& options);

}  // namespace halftone::lab
