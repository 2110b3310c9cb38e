// halftone-lab graph: the recorded graph of one step of a workload under a policy, as a picture.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <halftone/lab/workload.h>

namespace halftone::lab {

struct GraphOptions {
  std::string policy, workload;
  /// The ending decides: .dot is written directly; Graphviz makes .svg, .png and .pdf. Empty:
  /// prints .dot to standard output.
  std::filesystem::path output{};
};

/// Writes the graph. Returns the exit code. Throws Error if a file cannot be read or written, if a
/// name is unknown, if the workload cannot run, or if Graphviz is needed and not installed.
int run_graph(const GraphOptions& options, const std::vector<NamedWorkload>& own);

}  // namespace halftone::lab
