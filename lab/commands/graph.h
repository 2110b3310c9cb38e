// halftone-lab graph: the recorded graph of one step of a workload under a policy, as a picture.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <halftone/lab/workloads/workload.h>

namespace halftone::lab {

struct GraphOptions {
  std::string policy, workload;
  /// .dot is written as it is; .svg, .png and .pdf are made by Graphviz. Empty: to standard output,
  /// in Graphviz's language.
  std::filesystem::path output{};
};

/// The exit code. Throws Error for what cannot be read, written, does not exist, or
/// cannot be done, and where Graphviz is needed and not installed.
int run_graph(const GraphOptions& options, const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
