// The page around the panels.
#include <halftone/lab/report/report.h>

#include <iostream>

#include <halftone/core/files.h>
#include <halftone/lab/draw/html.h>
#include <halftone/lab/report/report_page.h>

namespace halftone::lab {

namespace {

struct Panel {
  const char *anchor, *title;
  std::string (*content)(const ReportData&);
};
constexpr Panel panels[] = {
    {"summary", "Summary", summary_panel},
    {"losses", "Losses", loss_panel},
    {"memory", "Memory", memory_panel},
    {"resolved", "What each tensor gets", resolved_panel},
    {"sites", "Sites and roles", site_panel},
    {"errors", "The parts of errors", error_panel},
    {"steps", "Sites over steps", step_panel},
    {"exponents", "Sizes of numbers", histogram_panel},
    {"updates", "Updates", update_panel},
    {"scales", "Scales", scale_panel},
    {"comparison", "Against the reference, in order of computation", comparison_panel},
    {"search", "Sensitivity and search", search_panel},
    {"strategies", "Strategies compared", strategy_panel},
    {"definitions", "Definitions", definition_panel}};

std::string counted(std::size_t count, const char* one, const char* many) {
  return std::to_string(count) + " " + (count == 1 ? one : many);
}

std::string heading(const ReportData& data) {
  std::size_t runs = 0, policies = 0;
  for (const ReportGroup& group : data.groups)
    if (!group.is_file) runs += group.runs.size(), ++policies;
  std::string text = counted(runs, "run", "runs") + ", " + counted(policies, "policy", "policies");
  for (const auto& groups : data.by_workload())
    if (!groups.front()->workload.empty())
      text += ", " + html::shortened(groups.front()->workload, 60);
  return text;
}

}  // namespace

std::string absent(std::string_view what, std::string_view command) {
  return html::element("p", "class=\"absent\"",
                       html::escaped(what) + ". It is made by " +
                           html::element("code", "", html::escaped(command))) +
         "\n";
}

std::string defined(std::string_view shown, std::string_view anchor) {
  return html::element("a", "href=\"#def-" + std::string(anchor) + "\"", html::escaped(shown));
}

std::string report(const ReportOptions& options) {
  const ReportData data = read_report_data(options);
  std::string links, sections;
  int number = 0;
  for (const Panel& panel : panels) {
    const std::string title = std::to_string(++number) + ". " + panel.title;
    links += html::element("a", "href=\"#" + std::string(panel.anchor) + "\"", title) + "\n";
    sections += html::element("section", "id=\"" + std::string(panel.anchor) + "\"",
                              "\n" + html::element("h2", "", title) + "\n" + panel.content(data)) +
                "\n";
  }
  std::string top = html::element("h1", "", "halftone: what number formats did to these runs") +
                    "\n" + paragraph(heading(data));
  if (!data.notes.empty())
    top += html::element("p", "class=\"absent\"",
                         "Something could not be read: see " +
                             html::element("a", "href=\"#notes\"", "what was left out") + ".");
  return html::document(
      "halftone report",
      html::element("header", "", "\n" + top + html::element("nav", "", "\n" + links)) + "\n" +
          html::element("main", "", "\n" + sections));
}

int run_report(const ReportOptions& options) {
  files::require_replaceable("report", options.output);
  const std::string page = report(options);
  files::replace("report", options.output, page);
  std::cout << "report: " << options.output.string() << std::endl;
  return 0;
}

}  // namespace halftone::lab
