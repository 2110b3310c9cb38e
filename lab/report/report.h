// halftone-lab report: shows runs on disk as one page of HTML, which has no scripts and loads
// nothing. docs/report.md describes the page.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

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

}  // namespace halftone::lab
