// The commands of halftone-lab. Each takes its arguments, prints what a person asked for, and
// returns the exit status.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include <halftone/amp/policy.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/named_tensors.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/lab.h>
#include <halftone/lab/run.h>
#include <halftone/lab/workload.h>
#include <halftone/amp/rules.h>

namespace halftone::lab {

// The commands of halftone-lab. For the command x, add_x() defines its flags and returns the
// function that runs it.

/// The workloads that all commands share.
struct Context {
  std::vector<NamedWorkload> own;
  std::string workload;  // the default
  std::string names;     // all workloads, for --help

  explicit Context(const NamedWorkload* first);
};

/// Runs a command after its flags are parsed. Returns the exit code of the program.
using Work = std::function<int()>;

/// One line of `halftone-lab --help`.
struct Command {
  const char* name;
  const char* about;
  Work (*add)(CLI::App& app, const Context& context);
  bool trains = true;  // whether it has --threads
};
/// Returns all commands, in the order in which the help lists them.
std::span<const Command> commands();

Work add_formats(CLI::App& app, const Context& context);
Work add_vectors(CLI::App& app, const Context& context);
Work add_show(CLI::App& app, const Context& context);
Work add_export(CLI::App& app, const Context& context);
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
Work add_figure(CLI::App& app, const Context& context);
Work add_table(CLI::App& app, const Context& context);
Work add_experiment(CLI::App& app, const Context& context);

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
  std::string policy{}, reference = "amp-bf16", metric = "late-loss";  // or "validation"
  Bound within{};
  Setup setup{};
  uint64_t seed = 0;             // of the first pair
  std::filesystem::path out{};   // a folder for the runs; empty: a temporary one
  int64_t first = 8, pairs = 0;  // pairs: exactly that many; 0: by the spread of the `first` ones
  double max_minutes = 20;
  int jobs = 0;        // 0: as many as this machine has threads for
  std::string json{};  // empty: none; -: standard output
};

/// Trains pairs, each run in a process of its own, and prints the answer. Runs that are finished in
/// options.out are not trained again. Returns 0 for equivalent or better, 1 for worse, 3 for
/// undecided or after a signal. Throws UsageError for numbers out of range, a folder of other
/// settings, a run that fails, a reference that diverges, and, under a relative bound, a loss that
/// is not above 0.
int run_gate(const GateOptions& options, const std::vector<NamedWorkload>& own,
             std::ostream& progress);

// halftone-lab picture: trains a small model and draws one effect of a short format.
// docs/amp_from_the_inside.md shows the drawings.

/// Returns the names of the pictures:
/// exponents: sizes of weights, activations and gradients, with the ranges of formats.
/// loss-scale: the shares that become 0 and infinity in f16 at each loss scale, and the accuracy.
/// bytes: what fills the memory at the peak of each event of a step, under four strategies.
/// updates: sizes of updates relative to the spacing of the weights.
/// staircase: one weight over the steps, in f32, in bf16, and in bf16 with a remainder.
std::span<const std::string_view> picture_names();

// halftone-lab show: what a policy does with a model, site by site.

struct ShowOptions {
  std::string policy, workload, other{};  // other: prints only its differences from policy
  std::string json{};                     // empty: none; -: standard output
};
/// Prints the policy's effects to standard output, notes to standard error. Returns the exit code.
int run_show(const ShowOptions& options, const std::vector<NamedWorkload>& own);

// Flags that several commands share.

/// Returns the names, separated by commas: "a, b, c".
std::string list_of(std::span<const std::string_view> names);

/// Returns a check for a whole number from `least` to `most`. (CLI11's own checks read numbers
/// beyond 64 bits as the largest one, and print limits with 300 digits.)
CLI::Validator whole_number(int64_t least, int64_t most);
/// Returns a check for a finite number above 0.
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
void add_training(CLI::App& app, Setup& setup, const Context& context);

// --- results for programs
/// Adds --json: a file, or - for standard output.
void add_json(CLI::App& app, std::string& path);
/// Throws UsageError if the file cannot be written. Call it before the work.
void require_json(const std::string& path);
/// Writes the text to the file or to standard output; does nothing if no path was given.
void write_json(const std::string& path, const std::string& text);
/// Returns the stream for people: standard output, or standard error if JSON takes that.
std::ostream& words_next_to(const std::string& json_path);
/// Writes the first line of a command's output: the workload and what it is. `by_losses`: whether
/// the command's answer depends on losses; then, if the workload trains on noise, writes a note to
/// standard error.
void name_workload(std::ostream& out, const std::string& workload,
                   const std::vector<NamedWorkload>& own, bool by_losses = true);

// Compares one batch under two policies: where do they diverge, and do their formats predict it?

/// How one tensor of the candidate policy's run deviates. A number that does not apply, or cannot
/// be computed, is NaN (`none`).
struct Deviation {
  static constexpr double none = std::numeric_limits<double>::quiet_NaN();
  std::string site;
  policy::Role role = policy::Role::output;
  std::size_t input = 0;  // the operand's number
  int64_t elements = 0;
  /// The relative error of the tensor's quantizer or cast, sqrt(sum e^2 / sum x^2), divided by the
  /// prediction of its format: 0.2123 2^(1 - p) for significands of p bits. `none` for formats that
  /// are tables or functions of the program.
  double rounding = none;
  /// For results and gradients: the relative difference from what the same operation returns in f32
  /// on operands before their rounding.
  double local = none;
  /// `local` divided by the root of the sum of squares of the operands' errors and of this tensor's
  /// own rounding error.
  double amplification = none;
  /// The relative difference from this tensor in the reference's run, over at most 65,536 elements.
  double twin = none;
  std::string reason{};  // says what deviates from the prediction; empty: nothing does
};

struct CompareOptions {
  double rounding = 4, amplification = 4;  // limits: a tensor above one of them deviates
  uint64_t seed = 0;
  /// Called before the candidate's pass, so that tests can plant faults.
  std::function<void(amp::Training&)> prepare{};
};

struct Comparison {
  std::vector<Deviation> rows{};  // in the order of computation
  int first = -1;                 // index of the first row that deviates; -1: none
  double reference_loss = 0, candidate_loss = 0;
};

/// Runs one forward and backward pass of the workload's example under each policy, from the same
/// weights and random numbers. Returns the deviations of the candidate's tensors.
Comparison compare(const std::function<Workload()>& make, const amp::Policy& reference,
                   const amp::Policy& candidate, const CompareOptions& options = {});

/// Returns a line per tensor that was rounded or computed from rounded tensors. Marks the first
/// deviation.
std::string table_of(const Comparison& comparison);

struct ComparedNames {
  std::string policy, reference, workload;
};
/// Returns the comparison with all rows as JSON, for programs (docs/telemetry.md); NaN becomes
/// null.
std::string json_of(const Comparison& comparison, const ComparedNames& names, uint64_t seed);

// halftone-lab vectors: inputs with the exact results of a format's or a quantizer's rounding, in a
// file that another project can read, and a check of a short format over every f32.

/// The name of the command in error messages.
inline constexpr std::string_view vectors_op = "halftone-lab vectors";

/// Inputs and exact results of one format's or quantizer's rounding. docs/vectors.md lists the
/// tensors.
struct Vectors {
  NamedTensors tensors;
  std::map<std::string, std::string> metadata;
};
/// Returns the vectors of a quantizer. Without a scale they are those of its grid, the numbers that
/// it can represent. `name` goes into the metadata. Throws UsageError unless count is 64 to 2^24.
Vectors vectors_of(const std::string& name, const Quantizer& quantizer,
                   const std::vector<Rounding>& roundings, int64_t count);
/// Returns one JSON object for the metadata, then one for each input, all on lines of their own.
std::string json_lines_of(const Vectors& vectors);

/// Returns `count` inputs for the rounding to a format: special numbers, numbers of the format,
/// midpoints and their neighbors, then random numbers. They are the same on every machine.
std::vector<float> inputs_of(const NumberFormat& format, int64_t count);

/// Returns the rounding of x, found by a search over the format's numbers in f64: a reference for
/// quantize(). `word`: 32 random bits, which only stochastic rounding reads.
float found_by_search(const NumberFormat& format, Rounding rounding, float x, uint32_t word = 0,
                      Saturation saturation = Saturation::none);

/// The result of a comparison of quantize() with found_by_search().
struct Exhaustive {
  int64_t compared = 0, different = 0;
  std::string first{};  // describes the first difference
};
/// Rounds every float whose bits are in [first, last) by quantize() and by found_by_search(), and
/// compares. Throws UsageError for a format of more than 8 bits.
Exhaustive compare_all(const NumberFormat& format, const std::vector<Rounding>& roundings,
                       Saturation saturation = Saturation::none, uint64_t first = 0,
                       uint64_t last = uint64_t(1) << 32);

}  // namespace halftone::lab
