// halftone-lab report: shows runs on disk as one page of HTML, which has no scripts and loads
// nothing. docs/report.md describes the page.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/formats/survey.h>
#include <halftone/lab/draw.h>
#include <halftone/lab/report/page.h>
#include <halftone/lab/run_folder.h>
#include <halftone/amp/probe.h>
#include <halftone/amp/rules.h>

namespace halftone::lab {

struct ReportOptions {
  /// Run folders; metrics of other programs, .csv or .jsonl with columns step and loss; .json files
  /// of comparisons and searches.
  std::vector<std::filesystem::path> paths;
  std::filesystem::path output = "report.html";
  /// Differences are taken from this policy; empty: from that of the first folder.
  std::string reference{};
};

/// Returns the page. Throws FormatError for paths of another kind and for invalid JSON, and
/// UsageError for a reference that no run has. Skips broken lines; the page lists them.
std::string report(const ReportOptions& options);

/// Writes the page to `output`. Returns the exit code.
int run_report(const ReportOptions& options);

// The data of the report's panels: runs in groups (one policy under one setting, several seeds),
// with the surveys of each group added up.

/// One training.
struct ReportRun {
  std::string folder;
  std::optional<int64_t> seed;
  RunSummary summary{};
  std::vector<svg::Point> losses{}, loss_scales{}, skipped{};  // over steps
};

/// The tensors of one site and role, over all runs, steps and inputs.
struct ReportTensor {
  Survey survey{};
  std::string quantizer{};                                // "": the tensor is not rounded
  policy::WeightFlips flips{};                            // only of rounded weights
  std::map<int64_t, SurveySums> by_step{};                // only if the tensor is rounded
  std::map<int64_t, std::pair<double, double>> scales{};  // scale used and ideal scale, from the
                                                          // first run
};

/// Runs of one policy under one setting.
struct ReportGroup {
  std::string label, policy, workload;
  int style = 0;
  bool is_file = false;  // another program's metrics
  SweepCell cell{};      // without values if no sweep trained the runs
  std::vector<ReportRun> runs{};
  std::vector<RecordedSite> resolved{};
  std::vector<std::string> sites{};  // in the order of computation
  std::map<std::pair<std::string, policy::Role>, ReportTensor> tensors{};
  std::map<int64_t, policy::UpdateSums> updates{};  // by step, for weights as stored
  policy::UpdateSums stored{}, seen{};
  std::array<double, policy::UpdateRow::bins> by_ulp{};

  const ReportTensor* tensor(const std::string& site, policy::Role role) const;
  /// Returns one number of the summaries, from each run that has it.
  std::vector<double> numbers(const std::string& name) const;
  /// The same, but only from runs with a seed that all of these groups have. Means of the groups
  /// can then be compared. Without such a seed: from all runs.
  std::vector<double> numbers_beside(const std::vector<const ReportGroup*>& groups,
                                     const std::string& name) const;
  /// Returns value(run) - value(run of the same seed in `base`), divided by the latter's magnitude.
  std::vector<double> paired(const ReportGroup& base, const std::string& name) const;
};

struct ReportData {
  std::vector<ReportGroup> groups{};
  std::vector<std::filesystem::path> comparisons{}, searches{}, strategies{};
  std::vector<std::string> notes{};

  /// Returns the groups of each workload, with those of other programs in each. Differences are
  /// taken from the first group.
  std::vector<std::vector<const ReportGroup*>> by_workload() const;
  /// Returns the groups for which `has` is true.
  template <class Has> std::vector<const ReportGroup*> that(Has has) const {
    std::vector<const ReportGroup*> result;
    for (const ReportGroup& group : groups)
      if (has(group)) result.push_back(&group);
    return result;
  }
};

/// Reads all paths. Throws what report() throws.
ReportData read_report_data(const ReportOptions& options);

/// Returns a Survey with only sums, for its derived statistics such as the underflow share.
Survey survey_of(const SurveySums& sums);

// The panels of the report, a function each, and what they share. Every text from a file goes
// through html::escaped (or a function that does it).

using html::figures;
using html::paragraph;

std::string summary_panel(const ReportData& data);
std::string loss_panel(const ReportData& data);
std::string memory_panel(const ReportData& data);
std::string resolved_panel(const ReportData& data);
std::string site_panel(const ReportData& data);
std::string error_panel(const ReportData& data);
std::string step_panel(const ReportData& data);
std::string histogram_panel(const ReportData& data);
std::string update_panel(const ReportData& data);
std::string scale_panel(const ReportData& data);
std::string comparison_panel(const ReportData& data);
std::string strategy_panel(const ReportData& data);
std::string search_panel(const ReportData& data);
std::string definition_panel(const ReportData& data);

/// Returns the figures under the table of one workload's groups: differences from the first group
/// with intervals, and losses over bits.
std::string choice_figures(const std::vector<const ReportGroup*>& groups);

/// Returns a note for missing data, with the command that creates it.
std::string absent(std::string_view what, std::string_view command);
/// Returns the name of a number as a link to its definition in `definition_panel`.
std::string defined(std::string_view shown, std::string_view anchor);
/// Returns Student's 95 % interval as "+0.4 % ± 0.1 %"; "" without numbers, no interval for one.
std::string interval_text(const std::vector<double>& differences);
/// Writes runs of numbers in site names as ranges: "h.{0-3}.mlp" for "h.0.mlp" to "h.3.mlp".
std::string folded(const std::vector<std::string>& names);
/// Returns the length of the number that begins here and is enclosed by '.' or '/'; 0 if none does.
std::size_t number_at(std::string_view name, std::size_t at);
/// Replaces each number between '.' and '/' in the name by "#".
std::string without_numbers(std::string_view site);

}  // namespace halftone::lab
