// halftone-lab table: all numbers of runs on disk, one per row, for pandas and other programs.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

namespace halftone::lab {

struct TableOptions {
  std::vector<std::filesystem::path> paths;
  bool json_lines = false;          // an object per line; otherwise comma-separated values
  std::filesystem::path output{};   // empty: standard output
  std::vector<std::string> only{};  // statistics to write; empty: all
};

/// Writes rows of run, policy, workload, seed, step, site, role, input (the operand's number),
/// statistic, value. For the run as a whole (loss, bytes, ...) the role is "run". For metrics, site
/// and role are empty. For updates, site is the parameter and role is "update" (as stored) or
/// "update.seen" (as forward sees it). Derived statistics - underflow, saturation, sqnr, bias, ...
/// - follow the counts and sums that they come from. Histograms are left out. Throws FormatError
/// for a path that is not a run, and for a damaged run; UsageError, before it writes, for a
/// statistic of `only` that no run has.
void write_table(const TableOptions& options, std::ostream& out);

/// Writes the table. Returns the exit code. Reports paths that could not be read on standard error.
int run_table(const TableOptions& options);

}  // namespace halftone::lab
