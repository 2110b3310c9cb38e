// halftone-lab show: what a policy does with a model, site by site.
#pragma once

#include <string>
#include <vector>

#include <halftone/lab/workloads/workload.h>

namespace halftone::lab {

struct ShowOptions {
  std::string policy, workload, other{};  // other: only what it does otherwise
  bool json = false;                      // also of what differs
};
/// Prints to standard output, notes to standard error; the exit code.
int run_show(const ShowOptions& options, const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
