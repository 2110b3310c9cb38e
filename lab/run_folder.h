// Reads runs on disk (docs/telemetry.md) for the report and `halftone-lab table`. Files are not
// trusted: every field may be missing or of another type, and the last line may be cut off.
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

#include <halftone/policy/telemetry/probe.h>

namespace halftone::lab {

/// The numbers of one line of metrics by name, including "step".
using MetricsLine = std::map<std::string, double>;

/// The treatment of one site, as in resolved.json.
struct RecordedSite {
  std::string site, computes_in;
  std::vector<std::pair<std::string, std::string>> roles;  // role, quantizer
};

struct RunSummary {
  // Members of nested objects have names such as "data.hash".
  std::map<std::string, std::string> texts;  // policy, hashes, workload, environment, ...
  std::map<std::string, double> numbers;     // seed, steps, lr, loss, milliseconds_per_step, ...
  std::vector<std::pair<std::string, double>> bytes_at_peak;
};

/// A run folder, or a file of another program with columns step and loss.
class RunFolder {
 public:
  /// Throws FormatError, in the name of `op`, if the path is neither.
  RunFolder(std::string_view op, std::filesystem::path path);

  /// Returns whether a folder has any of a run's files.
  static bool is_run(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  /// The last part of the path.
  std::string name() const;
  bool is_file() const { return is_file_; }
  bool has(const char* file) const;
  /// The records of searches: its files named "search.json" and "x.search.json", by name.
  std::vector<std::filesystem::path> searches() const;
  /// Returns false for a folder that has only a comparison or a search.
  bool was_trained() const;

  /// Returns nullopt without summary.json. Throws FormatError for invalid JSON.
  std::optional<RunSummary> summary() const;
  /// Calls `use` with each line that has a step, in the file's order.
  void each_metrics_line(const std::function<void(const MetricsLine&)>& use);
  /// Calls one of the functions with each line of probe.jsonl.
  void each_probe_line(const std::function<void(const policy::ProbeRow&)>& survey,
                       const std::function<void(const policy::UpdateRow&)>& update);
  std::vector<RecordedSite> resolved() const;

  /// Says in words what was skipped.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void read_csv_metrics(const std::function<void(const MetricsLine&)>& use);
  void note_skipped(int64_t lines, const char* file);

  std::string op_;
  std::filesystem::path path_;
  bool is_file_ = false;
  std::vector<std::string> notes_{};
};

/// Returns the finite number that the whole text is; otherwise nullopt.
std::optional<double> number_of(std::string_view text);

/// Returns the run at each path, or all runs in it, in the order of the policies of the command
/// that trained them, then by name. Notes a folder without runs (a sweep has such folders next to
/// its runs). Throws FormatError for other paths that are not runs, and if no run is left.
std::vector<RunFolder> run_folders(std::string_view op,
                                   const std::vector<std::filesystem::path>& paths,
                                   std::vector<std::string>& notes);

}  // namespace halftone::lab
