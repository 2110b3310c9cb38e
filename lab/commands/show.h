// halftone-lab show: what a policy does with a model, site by site.
#pragma once

#include <string>
#include <vector>

#include <halftone/lab/workload.h>

namespace halftone::lab {

struct ShowOptions {
  std::string policy, workload, other{};  // other: prints only its differences from policy
  std::string json{};                     // empty: none; -: standard output
};
/// Prints to standard output, and notes to standard error. Returns the exit code.
int run_show(const ShowOptions& options, const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
