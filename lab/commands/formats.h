// halftone-lab formats: the grids of numbers that quantizers use, and what they do to random
// numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace halftone::lab {

struct FormatsOptions {
  std::vector<std::string> names{};  // formats and quantizers; none: all that have a name
  bool check = false;                // compare with published and derived numbers
  int64_t samples = int64_t(1) << 20;
};

/// Prints tables to standard output; the exit code. Throws UsageError for unknown names.
int run_formats(const FormatsOptions& options);

}  // namespace halftone::lab
