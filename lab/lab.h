// The program halftone-lab, which you can also build with a model of your own:
//
//   int main(int argc, char** argv) {
//     return halftone::lab::main(argc, argv, {.name = "mine", .about = "", .make = my_workload});
//   }
#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include <halftone/lab/workload.h>

namespace halftone::lab {

/// The exit codes of all commands. exit_yes: done, or equal. exit_no: the answer is no.
/// exit_mistake: wrong usage or input, with a message on standard error. exit_undecided: no answer.
inline constexpr int exit_yes = 0, exit_no = 1, exit_mistake = 2, exit_undecided = 3;

/// Parses and runs a subcommand; `--help` lists them. Returns the exit code for a program's main().
int main(int argc, char** argv);
/// Does the same with one more workload, `own`, which becomes the default of --workload.
int main(int argc, char** argv, const NamedWorkload& own);

// halftone-lab table: all numbers of runs on disk, one per row, for pandas and other programs.

struct TableOptions {
  std::vector<std::filesystem::path> paths;
  bool json_lines = false;          // an object per line; otherwise comma-separated values
  std::filesystem::path output{};   // empty: standard output
  std::vector<std::string> only{};  // statistics to write; empty: all
  int64_t top = 0;                  // only this many rows with the largest values; 0: all, in order
};

/// Writes rows of run, policy, workload, seed, step, site (an operation of the model), role, input
/// (the operand's number), statistic, value. For the run as a whole (loss, bytes, ...) the role is
/// "run". For metrics, site and role are empty. For updates, site is the parameter and role is
/// "update" (as stored) or "update.seen" (as forward sees it). Derived statistics - underflow,
/// saturation, sqnr, bias, ... - follow the counts and sums that they come from. Histograms are
/// left out. Throws FormatError for a path that is not a run, and for a damaged run. Throws
/// UsageError, before it writes, for a statistic of `only` that no run has.
void write_table(const TableOptions& options, std::ostream& out);

}  // namespace halftone::lab
