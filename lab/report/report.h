// halftone-lab report and figure: runs on disk as one page of HTML, and each figure of the page as
// a file. docs/report.md describes both.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/formats/survey.h>
#include <halftone/lab/draw.h>
#include <halftone/lab/gate.h>
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
  /// The policy from which differences are taken; empty: that of the first folder.
  std::string reference{};
};

/// Returns the page of a report as HTML. Throws FormatError for invalid JSON and paths of
/// another kind, UsageError for a reference that no run has. The page notes lines that it cannot
/// read and, among several paths, other .json files.
std::string report(const ReportOptions& options);
/// Writes the page to `output`. Returns the exit code.
int run_report(const ReportOptions& options);

struct FigureOptions {
  std::string name;      // a name in figures()
  ReportOptions runs{};  // output: x.svg, x.pdf or x.csv
  double millimetres = 160;
  bool dark = false;
};
/// Returns the figure as SVG, PDF or CSV, by the ending of runs.output. Throws UsageError for other
/// endings, unknown names, and a figure without data, and what report() throws.
std::string figure(const FigureOptions& options);
/// Writes the figure to runs.output, and next to SVG or PDF its data as CSV. Returns the exit code.
int run_figure(const FigureOptions& options);

// The data: runs in groups (one policy under one setting, several seeds), with the surveys of each
// group added up.

/// One training in a report.
struct ReportRun {
  std::string folder;
  std::optional<int64_t> seed;
  RunSummary summary{};
  std::vector<svg::Point> losses{}, loss_scales{}, skipped{};  // over steps
};

/// The numbers of one site (an operation) and role, added up over all runs, steps and inputs.
struct ReportTensor {
  Survey survey{};
  std::string quantizer{};                                // "": the tensor is not rounded
  policy::WeightFlips flips{};                            // only if it is a rounded weight
  std::map<int64_t, SurveySums> by_step{};                // only if the tensor is rounded
  std::map<int64_t, std::pair<double, double>> scales{};  // scale used and ideal scale, from the
                                                          // first run
};

/// The runs of one policy under one setting, which differ in their seeds.
struct ReportGroup {
  std::string label, policy, workload;
  int style = 0;
  bool is_file = false;  // another program's metrics
  SweepCell cell{};      // without values if no sweep trained the runs
  std::vector<ReportRun> runs{};
  std::vector<RecordedSite> resolved{};
  std::vector<RecordedSwitch> switches{};  // of the first run
  std::vector<std::string> sites{};        // in the order of computation
  std::map<std::pair<std::string, policy::Role>, ReportTensor> tensors{};
  std::map<int64_t, policy::UpdateSums> updates{};  // by step, for weights as stored
  policy::UpdateSums stored{}, seen{};
  std::array<double, policy::UpdateRow::bins> by_ulp{};

  const ReportTensor* tensor(const std::string& site, policy::Role role) const;
  /// Returns the number `name` from the summary of each run that has it.
  std::vector<double> numbers(const std::string& name) const;
  /// Returns numbers(), but only from runs with a seed that all of `groups` have, so that means of
  /// the groups can be compared. Without such a seed, from all runs.
  std::vector<double> numbers_beside(const std::vector<const ReportGroup*>& groups,
                                     const std::string& name) const;
  /// Returns (number - base's) / |base's| of `name`, for each seed that both groups have.
  std::vector<double> paired(const ReportGroup& base, const std::string& name) const;
  /// Returns the MiB of each of memory_parts() at the moment of the highest total, in the first
  /// run; empty if that run did not record them.
  std::vector<double> memory() const;
  /// Returns the bits of products' weights, inputs, output gradients: medians of runs, or NaN.
  std::array<double, 3> bits() const;
};

using Groups = std::vector<const ReportGroup*>;

struct ReportData {
  std::vector<ReportGroup> groups{};
  std::vector<std::filesystem::path> comparisons{}, searches{}, strategies{};
  std::vector<std::string> notes{};

  /// Returns a list of groups for each workload. Groups of other programs are in each list. The
  /// first group is the one from which differences are taken.
  std::vector<Groups> by_workload() const;
};

/// Reads all paths. Throws what report() throws.
ReportData read_report_data(const ReportOptions& options);

// The figures, in report_figures.cpp: a list of pictures each, empty without data.

using Pictures = std::vector<svg::Picture>;
struct Figure {
  std::string_view name;
  Pictures (*pictures)(const Groups& of_one_workload);
};
std::span<const Figure> figures();
/// Returns the pictures of a figure for all workloads.
Pictures pictures_named(std::string_view name, const ReportData& data);
/// Sums over the rounded tensors of one role under one policy.
struct RoleErrors {
  std::size_t tensors = 0, below = 0;  // all; gradients whose norm over noise is below √3
  /// Sums of the tensors' squared errors, each divided by the tensor's sum of x^2.
  double whole = 0;
  ErrorParts parts{};
  double least = HUGE_VAL;  // norm over noise
  policy::WeightFlips flips{};

  /// Returns the root of the mean squared relative error.
  double size() const { return std::sqrt(whole / double(tensors)); }
  void add(policy::Role role, const ReportTensor& tensor);
};
// The tables, in report_tables.cpp. Every text from a file goes through html::escaped (or a
// function that does it).

/// Returns sentences: how each policy compares with the first, and where its errors are largest.
std::string verdicts(const ReportData& data);
std::string policy_table(const ReportData& data);
std::string fact_tables(const ReportData& data);
std::string format_table(const ReportData& data);
std::string error_table(const ReportData& data);
std::string update_table(const ReportData& data);
std::string comparison_tables(const ReportData& data);
std::string search_tables(const ReportData& data);
std::string definitions(const ReportData& data);

/// Returns "e2m1/1x16" for "e2m1, blocks of 1x16 with e4m3 scales ...", "e4m3/tensor" for a scale
/// of the tensor.
std::string short_format(const std::string& described);
/// The parts of a name are divided by '.' and '/'. Returns the length of the part that begins at
/// `at` if it is a number; otherwise 0.
std::size_t number_at(std::string_view name, std::size_t at);
/// Replaces each part of a site's name that is a number by "#": "h.#/linear.#".
std::string without_numbers(std::string_view site);

}  // namespace halftone::lab
