// halftone-lab rerun: a run's folder, again.
#pragma once

#include <filesystem>
#include <vector>

#include <halftone/lab/workloads/workload.h>

namespace halftone::lab {

struct RerunOptions {
  std::filesystem::path folder;
  std::filesystem::path from{};  // where the state lies now that the run began with; empty: there
  bool check = false;            // 1 if the weights are others
};
/// Trains as the folder says, writes nothing, and prints to standard output in what this place
/// differs from that of the run, and both hashes of the weights. The exit code.
int run_rerun(const RerunOptions& options, const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
