// halftone-lab formats: the grids of quantizers, and the errors that they cause in random numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace halftone::lab {

struct FormatsOptions {
  std::vector<std::string> names{};  // formats and quantizers; empty: all named ones
  bool check = false;                // compares with published and derived numbers
  int64_t samples = int64_t(1) << 20;
  std::string json{};  // empty: none; -: standard output
};

/// Prints tables to standard output. Returns the exit code. Throws UsageError for unknown names.
int run_formats(const FormatsOptions& options);

}  // namespace halftone::lab
