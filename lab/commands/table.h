// halftone-lab table: every number of runs on disk as one row each, for pandas and other programs.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <vector>

namespace halftone::lab {

struct TableOptions {
  std::vector<std::filesystem::path> paths;
  bool json_lines = false;         // an object per line; otherwise comma-separated values
  std::filesystem::path output{};  // empty: standard output
};

/// Rows of run, policy, seed, step, site, role, input (which operand it was), statistic, value. Of
/// metrics site and role are empty; of updates site is the parameter and role "update" (as stored)
/// or "update.seen" (as forward sees it). Derived statistics - underflow, saturation, sqnr, bias,
/// ... - stand beside the counts and sums that they come from; histograms are left out. Throws
/// FormatError for a path that is no run.
void write_table(const TableOptions& options, std::ostream& out);

/// The exit code. What could not be read goes to standard error.
int run_table(const TableOptions& options);

}  // namespace halftone::lab
