// Panel 4: the treatment of each site under each policy.
#include <algorithm>

#include <halftone/lab/draw/html.h>
#include <halftone/lab/report/report_page.h>

namespace halftone::lab {

using html::escaped;

namespace {

constexpr std::size_t most_rows = 150, most_policies = 8;

/// The quantizers of sites by role, each set under a letter and each quantizer under a number, so
/// that a page names them once.
class Legend {
 public:
  /// Returns the letters of the set: "A" to "Z", "AA", ...
  std::string letters_of(const std::string& set) {
    std::size_t number = place_in(sets_, set);
    std::string letters(1, char('A' + number % 26));
    while ((number /= 26) > 0) letters.insert(letters.begin(), char('A' + --number % 26));
    return letters;
  }
  std::string number_of(const std::string& quantizer) {
    return std::to_string(place_in(quantizers_, quantizer) + 1);
  }
  std::string text() {
    std::string sets, quantizers;
    for (const std::string& set : std::vector(sets_)) sets += line(letters_of(set), set);
    for (const std::string& quantizer : std::vector(quantizers_))
      quantizers += line(number_of(quantizer), escaped(html::shortened(quantizer, 160)));
    return list(sets) + list(quantizers);
  }

 private:
  static std::size_t place_in(std::vector<std::string>& all, const std::string& text) {
    const auto found = std::ranges::find(all, text);
    const auto place = std::size_t(found - all.begin());
    if (found == all.end()) all.push_back(text);
    return place;
  }
  static std::string line(const std::string& key, const std::string& markup) {
    return html::element("div", "",
                         html::element("dt", "", key) + html::element("dd", "", markup)) +
           "\n";
  }
  static std::string list(const std::string& lines) {
    return lines.empty() ? "" : html::element("dl", "class=\"facts letters\"", "\n" + lines) + "\n";
  }
  std::vector<std::string> sets_{};  // markup
  std::vector<std::string> quantizers_{};
};

/// Returns the dtype, and the letters of the site's quantizers.
std::string treatment_of(const RecordedSite& site, Legend& legend) {
  std::vector<std::pair<std::string, std::string>> lines;  // quantizer, roles
  for (const auto& [role, quantizer] : site.roles) {
    const auto same =
        std::ranges::find(lines, quantizer, &std::pair<std::string, std::string>::first);
    if (same != lines.end()) same->second += ", " + role;
    else lines.emplace_back(quantizer, role);
  }
  std::string set;
  for (const auto& [quantizer, roles] : lines)
    set += (set.empty() ? "" : "; ") + escaped(html::shortened(roles, 120)) + " <b>" +
           legend.number_of(quantizer) + "</b>";
  const std::string dtype =
      escaped(site.computes_in.empty() ? "-" : html::shortened(site.computes_in, 30));
  return set.empty() ? dtype : dtype + ", <b>" + legend.letters_of(set) + "</b>";
}

/// Sites whose names differ only in numbers, and that get the same treatment under every policy.
struct FoldedSites {
  std::vector<std::string> names;
  std::vector<std::string> treatments;  // by group
};

std::vector<FoldedSites> fold(const std::vector<const ReportGroup*>& groups, Legend& legend) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<std::string>> treatments;
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const RecordedSite& site : groups[g]->resolved) {
      auto& row = treatments[site.site];
      if (row.empty()) order.push_back(site.site), row.resize(groups.size(), "not there");
      row[g] = treatment_of(site, legend);
    }
  std::vector<FoldedSites> result;
  std::map<std::pair<std::string, std::vector<std::string>>, std::size_t> known;
  for (const std::string& site : order) {
    const auto [at, added] =
        known.try_emplace({without_numbers(site), treatments[site]}, result.size());
    if (added) result.push_back({{}, treatments[site]});
    result[at->second].names.push_back(site);
  }
  return result;
}

}  // namespace

std::size_t number_at(std::string_view name, std::size_t at) {
  const auto separates = [&](std::size_t i) { return name[i] == '.' || name[i] == '/'; };
  if (at > 0 && !separates(at - 1)) return 0;
  std::size_t end = at;
  while (end < name.size() && name[end] >= '0' && name[end] <= '9') ++end;
  return end < name.size() && !separates(end) ? 0 : end - at;
}

std::string without_numbers(std::string_view site) {
  std::string result;
  for (std::size_t at = 0; at < site.size();) {
    const std::size_t digits = number_at(site, at);
    if (digits > 0) result += '#', at += digits;
    else result += site[at++];
  }
  return result;
}

std::string folded(const std::vector<std::string>& names) {
  if (names.size() == 1) return names.front();
  // Shows the first number in which the names differ as a range; more numbers would need a table.
  const std::string &first = names.front(), &last = names.back();
  std::size_t at = 0;
  while (at < std::min(first.size(), last.size()) && first[at] == last[at]) ++at;
  while (at > 0 && first[at - 1] >= '0' && first[at - 1] <= '9') --at;
  const std::size_t a = number_at(first, at), b = number_at(last, at);
  const std::string count = " (" + std::to_string(names.size()) + ")";
  if (a == 0 || b == 0 || first.substr(at + a) != last.substr(at + b))
    return first + " ..." + count;
  return first.substr(0, at) + "{" + first.substr(at, a) + "-" + last.substr(at, b) + "}" +
         first.substr(at + a) + count;
}

std::string resolved_panel(const ReportData& data) {
  std::string text;
  for (const auto& all : data.by_workload()) {
    std::vector<const ReportGroup*> groups;
    for (const ReportGroup* group : all)
      if (!group->resolved.empty() && groups.size() < most_policies) groups.push_back(group);
    if (groups.empty()) continue;
    std::vector<std::string> heads{"sites"};
    for (const ReportGroup* group : groups)
      heads.push_back(escaped(html::shortened(group->label, 60)));
    html::Table table(heads, heads.size());
    Legend legend;
    const std::vector<FoldedSites> rows = fold(groups, legend);
    for (const FoldedSites& row : rows) {
      if (table.rows() == most_rows) break;
      std::vector<std::string> cells{escaped(html::shortened(folded(row.names), 90))};
      for (const std::string& treatment : row.treatments)
        cells.push_back(treatment == row.treatments.front()
                            ? treatment
                            : "<span class=\"differs\" title=\"differs from the first column\">≠ " +
                                  treatment + "</span>");
      table.row(cells);
    }
    if (!groups.front()->workload.empty())
      text += html::element("h3", "", escaped(html::shortened(groups.front()->workload, 60)));
    text += table.text() + legend.text();
    if (rows.size() > most_rows)
      text += paragraph("The first " + std::to_string(most_rows) + " of " +
                        std::to_string(rows.size()) +
                        " kinds of sites; all of them: "
                        "halftone-lab show POLICY --workload W.");
  }
  if (text.empty())
    return absent("No resolved table is here", "halftone-lab run POLICY... --out runs");
  return paragraph(
             "The dtype that an operation computes in, and a letter for the quantizers of its "
             "roles. The lists under the table explain the letters and the numbers of quantizers. "
             "≠ marks a difference from the first policy. Sites whose names differ only in a "
             "number and that get the same treatment share a line.") +
         text;
}

}  // namespace halftone::lab
