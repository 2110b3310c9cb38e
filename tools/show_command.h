// halftone-lab show: what a policy does with a model, tensor by tensor.
#pragma once

#include <string>

struct ShowOptions {
  std::string policy, workload = "mlp_tiny", other{};  // other: --diff
  bool json = false;
};

/// Prints to standard output; the exit code. Throws halftone::Error for what cannot be read, does
/// not exist, or cannot be done.
int run_show(const ShowOptions& options);
