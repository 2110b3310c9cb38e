// halftone-lab graph: the recorded graph of one step of a workload under a policy, as a picture.
#pragma once

#include <filesystem>
#include <string>

struct GraphOptions {
  std::string policy, workload = "mlp_tiny";
  /// .dot is written as it is; .svg, .png and .pdf are made by Graphviz. Empty: to standard output,
  /// in Graphviz's language.
  std::filesystem::path output{};
};

/// The exit code. Throws halftone::Error for what cannot be read, written, does not exist, or
/// cannot be done, and where Graphviz is needed and not installed.
int run_graph(const GraphOptions& options);
