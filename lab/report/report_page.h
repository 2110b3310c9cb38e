// The panels of the report, a function each, and what they share. Every text from a file goes
// through html::escaped (or a function that does it).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <halftone/lab/report/page.h>
#include <halftone/lab/report/report_data.h>

namespace halftone::lab {

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
