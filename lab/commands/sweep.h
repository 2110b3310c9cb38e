// Many trainings: the product of axes over fields of a policy file and options of `run`, each cell
// from each seed in a process of its own. What was finished before is not run again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include <halftone/lab/run.h>

namespace halftone::lab {

/// "quantizers.forward.scale.history=16,64,1024": a field of the file, by the names (or numbers, in
/// lists) that lead to it; or an option of run: lr, steps, optimizer, schedule, from. Values are
/// JSON, and texts where they are none: a text that looks like a number goes into quotes.
struct Axis {
  std::string name;
  std::vector<std::string> values;
};
/// Throws UsageError for a text without a name or values, and for a value given twice.
Axis axis_of(const std::string& text);

/// "0..4", "0,3,7" and both mixed. Throws UsageError for anything else, and for a seed given twice.
std::vector<uint64_t> seeds_of(const std::string& text);

/// One combination of the axes' values.
struct Cell {
  std::string name;    // "mxfp8-history=16-lr=0.001", of its policy file and folders
  std::string policy;  // the file's text
  std::vector<std::pair<std::string, std::string>> options{};  // of run: {"--lr", "0.001"}
};

/// All cells, the last axis running fastest. Fields of a file that is named are set in its text, so
/// that what it extends and what it calls its quantizers is as it was. Throws FormatError for a
/// path that leads through a number or text; whether the field exists is found when the cell's
/// policy is read.
std::vector<Cell> cells_of(const std::string& policy, const std::vector<Axis>& axes);

struct SweepOptions {
  std::string policy{};
  std::vector<Axis> axes{};
  RunOptions run{.steps = 300};  // without policies: workload, seeds, what is not an axis, and out,
                                 // in which are policies/, logs/ and the folders of run
  int jobs = 1;                  // processes at once, which share the threads
};

/// Runs what is not there yet, by this program's own command `run`, with a line of progress for
/// each; what was stopped on its way goes to unfinished/. Then prints a line per cell, as run does.
/// Returns 1 if one of them failed: the others are run all the same. Its processes end with it,
/// also when it is killed. Throws UsageError while another sweep is at work in the folder.
int run_sweep(const SweepOptions& options, std::ostream& progress);
/// In a process that a sweep started: asks the system for SIGTERM when the sweep ends. Otherwise
/// does nothing.
void end_with_sweep();

}  // namespace halftone::lab
