// halftone-lab rerun: repeats a run from its folder.
#pragma once

#include <filesystem>
#include <vector>

#include <halftone/lab/workload.h>

namespace halftone::lab {

struct RerunOptions {
  std::filesystem::path folder;
  std::filesystem::path from{};  // present path of the state that the run began with; empty: the
                                 // recorded path
  bool check = false;            // exit code 1 if the weights differ
  std::string json{};            // empty: none; -: standard output
};
/// Trains as the folder says and writes nothing. Prints how this environment differs from the
/// recorded one, and both hashes of the weights. Returns the exit code; 3 after a signal.
int run_rerun(const RerunOptions& options, const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
