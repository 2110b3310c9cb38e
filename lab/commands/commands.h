// The commands of halftone-lab. Each takes its arguments, prints what a person asked for, and
// returns the exit status.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include <halftone/lab/gate.h>
#include <halftone/lab/lab.h>
#include <halftone/lab/run.h>
#include <halftone/lab/workload.h>

namespace halftone::lab {

// The commands of halftone-lab. Each command has its own source file, with its flags: add_x()
// defines the flags and returns the function that runs the command.

/// The workloads that all commands share.
struct Context {
  std::vector<NamedWorkload> own;
  std::string workload;  // the default
  std::string names;     // names of all workloads, for help

  explicit Context(const NamedWorkload* first);
};

/// Runs a command after its flags are parsed. Returns the exit code of the program.
using Work = std::function<int()>;

/// One line of `halftone-lab --help`.
struct Command {
  const char* name;
  const char* about;
  Work (*add)(CLI::App& app, const Context& context);
  bool trains = true;  // has --threads
};
/// Returns all commands, in the order in which the help lists them.
std::span<const Command> commands();

Work add_formats(CLI::App& app, const Context& context);
Work add_vectors(CLI::App& app, const Context& context);
Work add_show(CLI::App& app, const Context& context);
Work add_graph(CLI::App& app, const Context& context);
Work add_picture(CLI::App& app, const Context& context);
Work add_gate(CLI::App& app, const Context& context);
Work add_run(CLI::App& app, const Context& context);
Work add_sweep(CLI::App& app, const Context& context);
Work add_fit(CLI::App& app, const Context& context);
Work add_rerun(CLI::App& app, const Context& context);
Work add_diff(CLI::App& app, const Context& context);
Work add_compare(CLI::App& app, const Context& context);
Work add_explain(CLI::App& app, const Context& context);
Work add_sensitivity(CLI::App& app, const Context& context);
Work add_search(CLI::App& app, const Context& context);
Work add_report(CLI::App& app, const Context& context);
Work add_table(CLI::App& app, const Context& context);
Work add_experiment(CLI::App& app, const Context& context);

// halftone-lab experiment: runs experiments and says whether they confirm their claims.

struct ExperimentOptions {
  std::string name = "all";
  bool thorough = false;  // --long
  std::string json{};     // empty: none; -: standard output
};

/// Runs the experiments and prints to standard output. Returns the exit code: 1 if a check failed.
/// Throws UsageError for unknown names.
int run_experiment(const ExperimentOptions& options);

// halftone-lab explain: trains until a step is skipped, then says why.

struct ExplainOptions {
  std::string policy, workload;
  int64_t steps = 200;
  double scale = 0;  // the initial loss scale; 0: the policy's
  uint64_t seed = 0;
  std::string json{};  // empty: none; -: standard output
};
/// Trains and prints to standard output. Returns the exit code: 0, also if no step was skipped.
int run_explain(const ExplainOptions& options, const std::vector<NamedWorkload>& own);

// halftone-lab formats: the grids of quantizers, and the errors that they cause in random numbers.

struct FormatsOptions {
  std::vector<std::string> names{};  // formats and quantizers; empty: all named ones
  bool check = false;                // compares with published and derived numbers
  int64_t samples = int64_t(1) << 20;
  std::string json{};  // empty: none; -: standard output
};

/// Prints tables to standard output. Returns the exit code. Throws UsageError for unknown names.
int run_formats(const FormatsOptions& options);

// halftone-lab gate: trains pairs until the difference of two policies is known well enough.

struct GateOptions {
  std::string policy{}, reference = "amp-bf16", metric = "late-loss";
  Bound within{};
  RunOptions run{};              // workload, seeds (the first one), steps, choices, and out
  int64_t first = 8, pairs = 0;  // pairs: exactly that many; 0: by their spread
  double max_minutes = 20;
  int jobs = 0;  // 0: as many as this machine has threads for
  std::string json{};
};

/// Trains pairs in processes of this program's own command `run`, and prints the answer. Runs that
/// are finished in `run.out` are not trained again; without it files are temporary. Throws
/// UsageError for a folder of other settings. Returns 0 for equivalent or better, 1 for worse, 3
/// for undecided or after a signal. Throws UsageError for a run that fails, for a reference that
/// diverges, and for a relative bound if a loss is not above 0.
int run_gate(const GateOptions& options, const std::vector<NamedWorkload>& own,
             std::ostream& progress);

// halftone-lab graph: the recorded graph of one step of a workload under a policy, as a picture.

struct GraphOptions {
  std::string policy, workload;
  /// The ending decides: .dot is written directly; Graphviz makes .svg, .png and .pdf. Empty:
  /// prints .dot to standard output.
  std::filesystem::path output{};
};

/// Writes the graph. Returns the exit code. Throws Error if a file cannot be read or written, if a
/// name is unknown, if the workload cannot run, or if Graphviz is needed and not installed.
int run_graph(const GraphOptions& options, const std::vector<NamedWorkload>& own);

// halftone-lab picture: trains a small model and draws one effect of a short format.
// docs/amp_from_the_inside.md shows the drawings.

struct PictureOptions {
  std::string name;      // one of picture_names()
  std::string workload;  // the workload to train; "loss-scale" has its own
  std::filesystem::path output{};
};

/// exponents: sizes of weights, activations and gradients, with the ranges of formats.
/// loss-scale: the shares that become 0 and infinity in f16 at each loss scale, and the accuracy.
/// bytes: what fills the memory at the peak of each event of a step, under four strategies.
/// updates: sizes of updates relative to the spacing of the weights.
/// staircase: one weight over the steps, in f32, in bf16, and in bf16 with a remainder.
std::span<const std::string_view> picture_names();

/// Writes the drawing as SVG. Returns the exit code. Throws Error if the file cannot be written or
/// a name is unknown.
int run_picture(const PictureOptions& options, const std::vector<NamedWorkload>& own);

// halftone-lab rerun: repeats a run from its folder.

struct RerunOptions {
  std::filesystem::path folder;
  std::filesystem::path from{};  // present path of the state that the run began with; empty: the
                                 // recorded path
  bool check = false;            // exit code 1 if the weights differ
  std::string json{};            // empty: none; -: standard output
};
/// Trains as the folder says and writes nothing. Prints how this environment differs from the
/// recorded one, and both hashes of the weights. Returns the exit code; 3 after a signal.
int run_rerun(const RerunOptions& options, const std::vector<NamedWorkload>& own);

// halftone-lab show: what a policy does with a model, site by site.

struct ShowOptions {
  std::string policy, workload, other{};  // other: prints only its differences from policy
  std::string json{};                     // empty: none; -: standard output
};
/// Prints to standard output, and notes to standard error. Returns the exit code.
int run_show(const ShowOptions& options, const std::vector<NamedWorkload>& own);

// Flags that several commands share.

/// Returns the names, separated by commas: "a, b, c".
std::string list_of(std::span<const std::string_view> names);

/// Checks of numbers, with messages for people. CLI11's own read whole numbers beyond 64 bits as
/// the largest one, and print limits with 300 digits.
CLI::Validator whole_number(int64_t least, int64_t most);
/// A finite number above 0.
CLI::Validator positive_number();
/// The largest --jobs.
inline constexpr int most_jobs = 10'000;

void add_policy(CLI::App& app, std::string& policy);
void add_workload(CLI::App& app, std::string& workload, const Context& context);
void add_seed(CLI::App& app, uint64_t& seed);
/// Adds --seeds, a list of numbers and ranges: 0,3,7..9.
void add_seeds(CLI::App& app, std::vector<uint64_t>& seeds, const std::string& about);
/// Adds --lr, --optimizer, --schedule and --from.
void add_choices(CLI::App& app, Choices& choices);
/// Adds the flags of `run`'s trainings, except policies and seeds.
void add_training(CLI::App& app, RunOptions& options, const Context& context);

// --- results for programs
/// Adds --json: a file, or - for standard output.
void add_json(CLI::App& app, std::string& path);
/// Throws UsageError if the file cannot be written; before the work.
void require_json(const std::string& path);
/// Writes the text to the file or to standard output; does nothing if no path was given.
void write_json(const std::string& path, const std::string& text);
/// Where words for people go: standard output, or standard error if that has the JSON.
std::ostream& words_next_to(const std::string& json_path);
/// The first line of a command's output: the workload and what it is. Adds a note to standard error
/// if it trains on noise and the command's answer depends on losses.
void name_workload(std::ostream& out, const std::string& workload,
                   const std::vector<NamedWorkload>& own, bool by_losses = true);

}  // namespace halftone::lab
