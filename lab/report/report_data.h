// The data of the report's panels: runs in groups (one policy under one setting, several seeds),
// with the surveys of each group added up.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <halftone/core/formats/survey.h>
#include <halftone/lab/draw/svg.h>
#include <halftone/lab/report/report.h>
#include <halftone/lab/run_folder.h>
#include <halftone/policy/probe.h>
#include <halftone/policy/rules.h>

namespace halftone::lab {

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

}  // namespace halftone::lab
