// Reads runs on disk (docs/telemetry.md) for the report and `halftone-lab table`. Files are not
// trusted: damage in summary.json and policy.json is an error. In other files, a part that is
// missing or of another type is left out, and a line that cannot be read gives a note.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/json_value.h>
#include <halftone/amp/probe.h>

namespace halftone::lab {

/// The numbers of one line of metrics by name, including "step".
using MetricsLine = std::map<std::string, double>;

/// How a policy treats one site (an operation of the model), as in resolved.json.
struct RecordedSite {
  std::string site, computes_in;
  std::vector<std::pair<std::string, std::string>> roles;  // role, quantizer
};

/// The step at which a rule with a condition switched on or off at a site, as in switches.jsonl.
struct RecordedSwitch {
  int64_t step = 0;
  std::string rule, site;  // rule: its name, or its number
  bool on = false;
};

/// The place of a run in a sweep, as in cell.json.
struct SweepCell {
  std::string policy{};                         // the policy that the sweep varies
  std::map<std::string, std::string> values{};  // as typed, by the short name of the axis
};

struct RunSummary {
  // Members of nested objects have names such as "data.hash".
  std::map<std::string, std::string> texts;  // policy, hashes, workload, environment, ...
  std::map<std::string, double> numbers;     // seed, steps, lr, loss, milliseconds_per_step, ...
  std::vector<std::pair<std::string, double>> bytes_at_peak;
};

/// A run on disk: a run folder, or metrics of another program with columns step and loss.
class RunFolder {
 public:
  /// Throws FormatError "[op] ..." unless the path is a run folder, a .csv file or a .jsonl file.
  RunFolder(std::string_view op, std::filesystem::path path);

  /// Returns whether a folder has at least one of a run's files, such as summary.json.
  static bool is_run(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  /// The last part of the path.
  std::string name() const;
  bool is_file() const { return is_file_; }
  bool has(const char* file) const;
  /// Returns the folder's files of searches, "search.json" and "x.search.json", by name.
  std::vector<std::filesystem::path> searches() const;
  /// Returns false for a folder that has only a comparison or a search.
  bool was_trained() const;

  /// Reads summary.json; returns nullopt if there is none. Throws FormatError for invalid JSON, and
  /// for fields that are missing or wrong (see read_summary()).
  std::optional<RunSummary> summary() const;
  /// Throws FormatError if policy.json has another hash than the run's policy, or if summary.json
  /// is damaged. Notes a missing policy.json. Does nothing without summary.json.
  void require_own_policy();
  /// Calls `use` with each line that has a step. Throws FormatError for CSV without a column step.
  void each_metrics_line(const std::function<void(const MetricsLine&)>& use);
  /// Calls `survey` with each line of probe.jsonl about a site, `update` with those of parameters.
  void each_probe_line(const std::function<void(const policy::ProbeRow&)>& survey,
                       const std::function<void(const policy::UpdateRow&)>& update);
  std::vector<RecordedSite> resolved();
  /// Returns the lines of switches.jsonl; none for a run without rules that have a condition.
  std::vector<RecordedSwitch> switches();
  /// Returns a cell without values for a run that no sweep trained.
  SweepCell cell() const;

  /// Returns sentences: what was skipped so far, and which files a finished run lacks.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void read_csv_metrics(const std::function<void(const MetricsLine&)>& use);
  void note_skipped(int64_t lines, const char* file);
  /// Adds the note "`file` is missing, so `what`" to those of a finished run.
  void note_missing(const char* file, const char* what);

  std::string op_;
  std::filesystem::path path_;
  bool is_file_ = false;
  std::vector<std::string> notes_{};
};

/// Returns the number if the whole text is a finite number; otherwise nullopt.
std::optional<double> number_of(std::string_view text);

/// Returns the run at each path. For a folder of runs, returns all its runs: in the order that the
/// policies had in the command that trained them, then by name. A run that several paths lead to is
/// read once. Adds a note for a folder without runs (a sweep has such folders). Throws FormatError
/// if another path is not a run, if there are only folders without runs, or if the summary.json or
/// policy.json of a run is damaged.
std::vector<RunFolder> run_folders(std::string_view op,
                                   const std::vector<std::filesystem::path>& paths,
                                   std::vector<std::string>& notes);

// Checks files of a run folder, for every command that reads run folders.

/// Throws FormatError "[op] FILE: problem".
[[noreturn]] void refuse_file(std::string_view op, const std::filesystem::path& file,
                              std::string_view problem);

/// Returns read(). Turns an Error that it throws into a FormatError "[op] FILE: message. Remedy."
template <class Read>
auto of_file(std::string_view op, const std::filesystem::path& file, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    refuse_file(op, file,
                std::string(error.message()) +
                    " It is damaged, or of another program: remove its folder, and run it again.");
  }
}

/// Returns the entry `key` of an object. Throws FormatError if it is missing, or for other values.
JsonValue wanted(const JsonValue& object, std::string_view key);

/// Checks that the hash of policy.json in `folder` is `policy_hash`, which summary.json has. Throws
/// FormatError "[op] ..." if the hash differs, or if the file is not a policy.
void require_policy(std::string_view op, const std::filesystem::path& folder,
                    std::string_view policy_hash);

}  // namespace halftone::lab
