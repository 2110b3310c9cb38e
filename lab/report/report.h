// halftone-lab report: what runs left on disk as one page of HTML, without scripts and without
// anything that is fetched. docs/report.md shows what is on it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace halftone::lab {

struct ReportOptions {
  /// Folders of runs; metrics of other programs, .csv or .jsonl with columns step and loss; files
  /// of comparisons and searches, .json.
  std::vector<std::filesystem::path> paths;
  std::filesystem::path output = "report.html";
  /// The policy that differences are from; empty: that of the first folder.
  std::string reference{};
};

/// The page. Throws FormatError for paths that are neither, and for files that are no JSON;
/// UsageError for a reference that no run has. Broken lines are skipped, and the page says so.
std::string report(const ReportOptions& options);

/// Writes it; the exit code.
int run_report(const ReportOptions& options);

}  // namespace halftone::lab
