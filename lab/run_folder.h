// What runs left on disk (docs/telemetry.md), read again: by the report and by `halftone-lab
// table`. Files are distrusted: every field may be missing or of another type, the last line cut
// off.
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

/// A line of metrics: its numbers by name, "step" among them.
using MetricsLine = std::map<std::string, double>;

/// What one site gets, as resolved.json has it.
struct RecordedSite {
  std::string site, computes_in;
  std::vector<std::pair<std::string, std::string>> roles;  // role, quantizer
};

struct RunSummary {
  // Members of objects are named as in "data.hash".
  std::map<std::string, std::string> texts;  // policy, hashes, workload, environment, ...
  std::map<std::string, double> numbers;     // seed, steps, lr, loss, milliseconds_per_step, ...
  std::vector<std::pair<std::string, double>> bytes_at_peak;
};

/// A run's folder, or a file with columns step and loss that another program wrote.
class RunFolder {
 public:
  /// Throws FormatError, in the name of `op`, for a path at which neither is.
  RunFolder(std::string_view op, std::filesystem::path path);

  /// Whether a folder has any of a run's files.
  static bool is_run(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return path_; }
  /// The last part of the path.
  std::string name() const;
  bool is_file() const { return is_file_; }
  bool has(const char* file) const;
  /// The records of searches: its files named "search.json" and "x.search.json", by name.
  std::vector<std::filesystem::path> searches() const;
  /// False of a folder in which only a comparison or a search lies.
  bool was_trained() const;

  /// Absent without summary.json. Throws FormatError if it is no JSON.
  std::optional<RunSummary> summary() const;
  /// Each line that has a step, in the file's order.
  void each_metrics_line(const std::function<void(const MetricsLine&)>& use);
  /// Each line of probe.jsonl.
  void each_probe_line(const std::function<void(const policy::ProbeRow&)>& survey,
                       const std::function<void(const policy::UpdateRow&)>& update);
  std::vector<RecordedSite> resolved() const;

  /// What was skipped, in words.
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  void read_csv_metrics(const std::function<void(const MetricsLine&)>& use);
  void note_skipped(int64_t lines, const char* file);

  std::string op_;
  std::filesystem::path path_;
  bool is_file_ = false;
  std::vector<std::string> notes_{};
};

/// Of each path its run, or the runs in it by name; a folder without any (a sweep has some beside
/// its runs) is noted. Throws FormatError for other paths that are no run, and where no run is
/// left.
std::vector<RunFolder> run_folders(std::string_view op,
                                   const std::vector<std::filesystem::path>& paths,
                                   std::vector<std::string>& notes);

}  // namespace halftone::lab
