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
#include <halftone/amp/policy.h>

namespace halftone::lab {

/// "quantizers.forward.scale.history=16,64,1024": a field of the file, given by the names (in
/// lists: the numbers) that lead to it; or an option of run: lr, steps, optimizer, schedule, from,
/// workload. "a,b=1,2" are tied fields, which have the same value in every cell. A value is JSON; a
/// value that is not valid JSON is a text. Write a text that looks like a number in quotes. If all
/// fields are options of run, `values` has the texts without quotes.
struct Axis {
  std::string name;
  std::vector<std::string> values;
};
/// Parses an axis. Throws UsageError for a text without a name or values, and for values that mean
/// the same, such as 0.001 and 1e-3.
Axis axis_of(const std::string& text);
/// Returns the options of run that are fields of the axis: "lr", ...
std::vector<std::string> run_options_of(const Axis& axis);

/// One combination of the axes' values.
struct Cell {
  std::string name;    // "mxfp8-history=16-lr=0.001": the name of its policy file and folders
  std::string policy;  // the file's text
  std::vector<std::pair<std::string, std::string>> options{};  // options of run: {"--lr", "0.001"}
  std::vector<std::size_t> places{};                           // of its value on each axis
  std::string record{};  // the text of cell.json in its run folders: the policy, and its values by
                         // the short names of the axes
  /// Returns its workload, which is `usual` unless it is an axis.
  const std::string& workload(const std::string& usual) const;
};

/// Returns each axis's last field name ("history"; "block.1" for an entry of a list), or its whole
/// name if the last one is not unique. Tied fields with different last names are joined by +.
std::vector<std::string> short_names(const std::vector<Axis>& axes);

/// Returns all cells; the last axis varies fastest. If `policy` is a file, the fields are set in
/// its text, so its "extends" and the names of its quantizers stay as they were. Throws FormatError
/// for a path that leads through a number or text. An unknown field is found when the cell's policy
/// is read.
std::vector<Cell> cells_of(const std::string& policy, const std::vector<Axis>& axes);

/// Throws what the command `run` would throw for the options of the sweep and of its cells.
void require_options(const RunOptions& run, const std::vector<Cell>& cells,
                     const std::vector<NamedWorkload>& own);
/// Throws UsageError for an axis with two values that give equal trainings in all cells, such as a
/// field of a quantizer that no rule uses. `policies` has the policy of each cell.
void require_effects(const std::vector<Axis>& axes, const std::vector<Cell>& cells,
                     const std::vector<amp::Policy>& policies);

struct SweepOptions {
  std::string policy{};
  std::vector<Axis> axes{};
  RunOptions run{.steps = 300};  // no policies; has the workload, seeds, options that are not axes,
                                 // and out, the folder of policies/, logs/ and the run folders
  std::string against{};         // see baseline_of()
  int jobs = 1;                  // processes at once, which share the threads
  std::string json{};            // empty: none; -: standard output
};

/// Returns the cell with which others are compared: "history=64,lr=3e-3" by the short names of
/// axes; for an axis that is not named, its first value. Throws UsageError for other texts.
const Cell& baseline_of(const std::string& text, const std::vector<Axis>& axes,
                        const std::vector<Cell>& cells);

/// Returns the table of main effects and, for two axes or more, of interactions; "" for one axis,
/// whose table has them. The main effect of a value is the mean relative difference of the loss
/// from that of the baseline's value on this axis, over all values of the other axes. The
/// interaction of two values is how much the effect of one changes by the other. Both with 95 %
/// intervals over the seeds. `runs` has each cell with each seed, and the baseline cell first.
std::string effects_of(const std::vector<Axis>& axes, const std::vector<Cell>& cells,
                       const Cell& baseline, const std::vector<RunResult>& runs);

/// Prints the workloads. Runs the cells that are not finished, each by this program's own command
/// `run`, and reports each to `progress`. Moves unfinished runs to unfinished/. Then prints a line
/// per cell, as run does. Returns 1 if a cell failed (the others still run), 3 if a signal stopped
/// it. The processes end with the sweep, even if it is killed. Throws UsageError while another
/// sweep uses the folder, and what require_options() and require_effects() throw.
int run_sweep(const SweepOptions& options, const std::vector<NamedWorkload>& own,
              std::ostream& progress);

}  // namespace halftone::lab
