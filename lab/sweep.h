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

/// An axis of a sweep. "quantizers.forward.scale.history=16,64,1024" is a field of the policy file,
/// given by the names (in lists: the numbers) that lead to it; or an option of `run`: lr, steps,
/// optimizer, schedule, from, workload. "a,b=1,2" are tied fields, which have the same value in
/// every cell. A value is JSON; one that is not valid JSON is a text. Quote a text that looks like
/// a number. If all fields are options of `run`, `values` has the texts without quotes.
struct Axis {
  std::string name;
  std::vector<std::string> values;
};
/// Parses an axis. Throws UsageError for a text without a name or values, and for values that mean
/// the same, such as 0.001 and 1e-3.
Axis axis_of(const std::string& text);
/// Returns the fields of the axis that are options of `run`, such as "lr".
std::vector<std::string> run_options_of(const Axis& axis);

/// One combination of the axes' values.
struct Point {
  std::string name;    // "mxfp8-history=16-lr=0.001": the name of its policy file and folders
  std::string policy;  // the file's text
  std::vector<std::pair<std::string, std::string>> options{};  // options of run: {"--lr", "0.001"}
  std::vector<std::size_t> places{};                           // index of its value on each axis
  std::string record{};  // the text of cell.json in its run folders: the policy, and its values by
                         // the short names of the axes
};

/// Returns a short name for each axis: the last part of its field ("history"; "block.1" for an
/// entry of a list), or the whole name if not unique. + joins tied fields with different last
/// parts.
std::vector<std::string> short_names(const std::vector<Axis>& axes);

/// Returns all points; the last axis varies fastest. If `policy` is a file, the fields are set in
/// its text, so its "extends" and the names of its quantizers stay. Throws UsageError for a field
/// on two axes or too many points, FormatError for a field below a number or text. Accepts unknown
/// fields: reading the point's policy refuses them.
std::vector<Point> points_of(const std::string& policy, const std::vector<Axis>& axes);

/// Returns the cell of each point: its policy, and the setup `usual` changed by its options. Throws
/// what the command `run` would throw for these options.
std::vector<Cell> cells_of(const std::vector<Point>& points, const Setup& usual,
                           const std::vector<NamedWorkload>& own);
/// Throws UsageError for an axis with two values that give equal trainings in all cells, such as a
/// field of a quantizer that no rule uses.
void require_effects(const std::vector<Axis>& axes, const std::vector<Point>& points,
                     const std::vector<Cell>& cells);

struct SweepOptions {
  std::string policy{};
  std::vector<Axis> axes{};
  Setup setup{};  // without the options that are axes
  std::vector<uint64_t> seeds{0};
  std::filesystem::path out{};  // the folder for policies/, logs/ and the run folders
  std::string against{};        // see baseline_of()
  int jobs = 1;                 // processes at once, which share the threads
  std::string json{};           // empty: none; -: standard output
};

/// Returns the point with which others are compared. `text`: its values, "history=64,lr=3e-3", by
/// the short names of axes; other axes have their first value. Throws UsageError for other texts.
const Point& baseline_of(const std::string& text, const std::vector<Axis>& axes,
                         const std::vector<Point>& points);

/// Returns the table of main effects and of interactions; "" for a single axis, for which the table
/// of runs already shows the effects. The main effect of a value is the mean relative difference of
/// the loss from that of the baseline's value on this axis, over all values of the other axes. The
/// interaction of two values is how much the effect of one changes by the other. Both have 95 %
/// intervals over the seeds. `runs` has each point with each seed, and the baseline first.
std::string effects_of(const std::vector<Axis>& axes, const std::vector<Point>& points,
                       const Point& baseline, const std::vector<RunResult>& runs);

/// Runs the cells that are not finished, each in a process of its own, and writes a line for each
/// to `progress`. Before, prints the workloads and moves unfinished runs to unfinished/. In the end
/// prints a line per cell, as `run` does. Returns 3 if a signal stopped the sweep, 1 if a run
/// failed (the others still run), otherwise 0. The processes end with the sweep, even if it is
/// killed. Throws UsageError while another sweep uses the folder, and what cells_of() and
/// require_effects() throw.
int run_sweep(const SweepOptions& options, const std::vector<NamedWorkload>& own,
              std::ostream& progress);

}  // namespace halftone::lab
