// halftone-lab explain: trains until a step is skipped, then says why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <halftone/lab/workload.h>

namespace halftone::lab {

struct ExplainOptions {
  std::string policy, workload;
  int64_t steps = 200;
  double scale = 0;  // the initial loss scale; 0: the policy's
  uint64_t seed = 0;
  std::string json{};  // empty: none; -: standard output
};
/// Trains and prints to standard output. Returns the exit code: 0, also if no step was skipped.
int run_explain(const ExplainOptions& options, const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
