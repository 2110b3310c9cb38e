// Many trainings: the product of axes over fields of a policy file and options of `run`. Each cell
// runs from each seed in its own process. Finished runs are not repeated.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include <halftone/lab/run.h>

namespace halftone::lab {

/// "quantizers.forward.scale.history=16,64,1024": a field of the file, given by the names (in
/// lists: the numbers) that lead to it; or an option of run: lr, steps, optimizer, schedule, from.
/// A value is JSON; a value that is not valid JSON is a text. Write a text that looks like a number
/// in quotes.
struct Axis {
  std::string name;
  std::vector<std::string> values;
};
/// Parses an axis. Throws UsageError for a text without a name or values, and for repeated values.
Axis axis_of(const std::string& text);

/// One combination of the axes' values.
struct Cell {
  std::string name;    // "mxfp8-history=16-lr=0.001": the name of its policy file and folders
  std::string policy;  // the file's text
  std::vector<std::pair<std::string, std::string>> options{};  // options of run: {"--lr", "0.001"}
};

/// Returns all cells; the last axis varies fastest. If `policy` is a file, the fields are set in
/// its text, so its "extends" and the names of its quantizers stay as they were. Throws FormatError
/// for a path that leads through a number or text. An unknown field is found when the cell's policy
/// is read.
std::vector<Cell> cells_of(const std::string& policy, const std::vector<Axis>& axes);

struct SweepOptions {
  std::string policy{};
  std::vector<Axis> axes{};
  RunOptions run{.steps = 300};  // no policies; has the workload, seeds, options that are not axes,
                                 // and out, the folder of policies/, logs/ and the run folders
  int jobs = 1;                  // processes at once, which share the threads
  std::string json{};            // empty: none; -: standard output
};

/// Runs the cells that are not finished, each by this program's own command `run`, and reports each
/// to `progress`. Moves unfinished runs to unfinished/. Then prints a line per cell, as run does.
/// Returns 1 if a cell failed (the others still run), 3 if a signal stopped it. The processes end
/// with the sweep, even if it is killed. Throws UsageError while another sweep uses the folder.
int run_sweep(const SweepOptions& options, std::ostream& progress);

}  // namespace halftone::lab
