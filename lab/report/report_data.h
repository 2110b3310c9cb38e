// What the report's panels are made of: runs in groups - one policy under one setting, from several
// seeds - with the surveys of a group added up.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <halftone/core/survey.h>
#include <halftone/lab/report/report.h>
#include <halftone/lab/run_folder.h>
#include <halftone/lab/draw/svg.h>
#include <halftone/policy/rules/site.h>
#include <halftone/policy/telemetry/update_probe.h>

namespace halftone::lab {

/// One training.
struct ReportRun {
  std::string folder;
  std::optional<int64_t> seed;
  RunSummary summary{};
  std::vector<svg::Point> losses{}, loss_scales{}, skipped{};  // over steps
};

/// A site's tensors of one role, all runs, steps and inputs together.
struct ReportTensor {
  Survey survey{};
  std::string quantizer{};                                // "": nothing rounds
  std::map<int64_t, SurveySums> by_step{};                // where something rounds
  std::map<int64_t, std::pair<double, double>> scales{};  // used and ideal, of the first run
};

/// Runs of one policy under one setting.
struct ReportGroup {
  std::string label, policy, workload;
  int style = 0;
  bool is_file = false;  // another program's metrics
  std::vector<ReportRun> runs{};
  std::vector<RecordedSite> resolved{};
  std::vector<std::string> sites{};  // in the order of computation
  std::map<std::pair<std::string, policy::Role>, ReportTensor> tensors{};
  std::map<int64_t, policy::UpdateSums> updates{};  // by step, as they are stored
  policy::UpdateSums stored{}, seen{};
  std::array<double, policy::UpdateRow::bins> by_ulp{};

  const ReportTensor* tensor(const std::string& site, policy::Role role) const;
  /// A number of the summaries, of all runs that have it.
  std::vector<double> numbers(const std::string& name) const;
  /// value(run) - value(run of the same seed in `base`), relative to the latter.
  std::vector<double> paired(const ReportGroup& base, const std::string& name) const;
};

struct ReportData {
  std::vector<ReportGroup> groups{};
  std::vector<std::filesystem::path> comparisons{}, searches{}, strategies{};
  std::vector<std::string> notes{};

  /// Groups of one workload, those of other programs included; the first is what differences are
  /// from.
  std::vector<std::vector<const ReportGroup*>> by_workload() const;
  /// Groups that have what is asked for.
  template <class Has> std::vector<const ReportGroup*> that(Has has) const {
    std::vector<const ReportGroup*> result;
    for (const ReportGroup& group : groups)
      if (has(group)) result.push_back(&group);
    return result;
  }
};

/// Throws what report() throws.
ReportData read_report_data(const ReportOptions& options);

/// Share of what is not 0 that became 0, and others of Survey, of sums alone.
Survey survey_of(const SurveySums& sums);

}  // namespace halftone::lab
