// Panels 4, 5 and 7: the treatment of each site, and its effect on the site's tensors.
#include <algorithm>
#include <cmath>
#include <set>

#include <halftone/lab/draw/html.h>
#include <halftone/lab/report/report_page.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

using html::escaped;

namespace {

constexpr std::size_t most_rows = 150, most_groups = 8;

/// The quantizers of a site by role, each set under a letter, so that a table names it once.
class Legend {
 public:
  /// Returns the letters of the set: "A" to "Z", "AA", ...
  std::string letters_of(const std::string& set) {
    const auto found = std::ranges::find(sets_, set);
    std::size_t number = std::size_t(found - sets_.begin());
    if (found == sets_.end()) sets_.push_back(set);
    std::string letters(1, char('A' + number % 26));
    while ((number /= 26) > 0) letters.insert(letters.begin(), char('A' + --number % 26));
    return letters;
  }
  std::string text() {
    std::string rows;
    for (const std::string& set : std::vector(sets_))
      rows +=
          html::element("div", "",
                        html::element("dt", "", letters_of(set)) + html::element("dd", "", set)) +
          "\n";
    return rows.empty() ? "" : html::element("dl", "class=\"facts letters\"", "\n" + rows) + "\n";
  }

 private:
  std::vector<std::string> sets_{};  // markup
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
    set += (set.empty() ? "<b>" : "<br/><b>") + escaped(html::shortened(roles, 120)) +
           "</b>: " + escaped(html::shortened(quantizer, 90));
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

// --- heat maps

struct Statistic {
  const char *anchor, *name;
  double (*value)(const Survey&);
  std::string (*text)(double);
  bool rounded;      // only for tensors that are rounded
  bool least_first;  // the least value is the worst
};

/// Two digits after the point below 1 %, otherwise one. A value that is not 0 never shows as 0.
std::string percents(double share) {
  if (share == 0) return "0";
  if (share < 5e-5) return "&lt;0.01";
  return fixed(100 * share, share < 0.01 ? 2 : 1);
}
std::string tenths(double value) { return fixed(std::round(10 * value) / 10 + 0.0, 1); }
std::string whole(double value) { return fixed(std::round(value) + 0.0, 0); }

constexpr Statistic statistics[] = {
    {"underflow", "underflow, %", [](const Survey& s) { return s.underflow(); }, percents, true,
     false},
    {"saturation", "saturation, %", [](const Survey& s) { return s.saturation(); }, percents, true,
     false},
    {"sqnr", "SQNR, dB", [](const Survey& s) { return s.sqnr(); }, tenths, true, true},
    {"rms", "log2 of the root mean square",
     [](const Survey& s) { return std::log2(s.root_mean_square()); }, whole, false, true}};

std::vector<policy::Role> roles_of(const ReportGroup& group, bool rounded) {
  std::set<policy::Role> roles;
  for (const auto& [place, tensor] : group.tensors)
    if (!rounded || !tensor.quantizer.empty()) roles.insert(place.second);
  return {roles.begin(), roles.end()};
}

/// Returns up to `most` names with the worst values, in their old order.
std::vector<std::string> worst_of(const std::vector<std::string>& sites,
                                  const std::map<std::string, double>& badness, std::size_t most) {
  std::vector<std::string> rows;
  for (const std::string& site : sites)
    if (badness.contains(site)) rows.push_back(site);
  if (rows.size() <= most) return rows;
  std::vector<double> all;
  for (const std::string& site : rows) all.push_back(badness.at(site));
  std::ranges::nth_element(all, all.begin() + std::ptrdiff_t(most - 1), std::greater());
  const double bar = all[most - 1];
  std::vector<std::string> kept;
  for (const std::string& site : rows)
    if (badness.at(site) >= bar && kept.size() < most) kept.push_back(site);
  return kept;
}

/// The range of a map's colors: 0 to the largest value; for logarithms, the least to the largest.
struct Colors {
  double low = 0, high = 0;
  bool least_first = false;
  double strength(double value) const {
    if (std::isnan(value)) return -1;
    if (value == HUGE_VAL) return 0;
    if (value == -HUGE_VAL) return least_first ? 1 : 0;
    const double share = high > low ? (value - low) / (high - low) : 0;
    return least_first ? 1 - share : share;
  }
};

double value_of(const Statistic& what, const ReportTensor* tensor) {
  if (!tensor || (what.rounded && tensor->quantizer.empty())) return svg::automatic;
  return what.value(tensor->survey);
}

/// All maps of a statistic share one range of colors, so that they can be compared.
Colors colors_of(const std::vector<const ReportGroup*>& groups, const Statistic& what) {
  Colors colors{
      .low = what.least_first ? HUGE_VAL : 0.0, .high = -HUGE_VAL, .least_first = what.least_first};
  for (const ReportGroup* group : groups)
    for (const auto& [place, tensor] : group->tensors) {
      const double value = value_of(what, &tensor);
      if (!std::isfinite(value)) continue;
      colors.low = std::min(colors.low, value), colors.high = std::max(colors.high, value);
    }
  return colors;
}

std::string heat_map_of(const ReportGroup& group, const Statistic& what, const Colors& colors,
                        std::size_t most) {
  const std::vector<policy::Role> roles = roles_of(group, what.rounded);
  std::map<std::string, double> badness;
  for (const auto& [place, tensor] : group.tensors) {
    const double value = value_of(what, &tensor);
    if (std::isnan(value)) continue;
    const double bad = what.least_first ? -value : value;
    const auto [at, added] = badness.try_emplace(place.first, bad);
    if (!added) at->second = std::max(at->second, bad);
  }
  const std::vector<std::string> rows = worst_of(group.sites, badness, most);
  if (rows.empty()) return "";
  std::vector<std::string> heads;
  for (const policy::Role role : roles) heads.emplace_back(policy::name(role));
  std::vector<html::HeatRow> cells;
  for (const std::string& site : rows) {
    cells.push_back({html::shortened(site, 60), {}});
    for (const policy::Role role : roles) {
      const ReportTensor* const tensor = group.tensor(site, role);
      const double value = value_of(what, tensor);
      html::HeatCell cell;
      if (!std::isnan(value)) {
        cell.text = std::isinf(value) ? (value > 0 ? "exact" : "0") : what.text(value);
        cell.title =
            std::string(policy::name(role)) +
            (tensor->quantizer.empty() ? "" : ": " + html::shortened(tensor->quantizer, 40)) +
            ", " + number(value, 5);
        cell.strength = colors.strength(value);
      }
      cells.back().cells.push_back(std::move(cell));
    }
  }
  std::string caption = escaped(html::shortened(group.label, 60)) + ": " + what.name;
  if (rows.size() < badness.size())
    caption += ", the " + std::to_string(rows.size()) + " worst of " +
               std::to_string(badness.size()) + " sites";
  return html::heat_map(caption, heads, cells);
}

/// Returns the role of the site with the most underflow. Among equal roles it takes the last, which
/// are gradients.
policy::Role worst_role(const ReportGroup& group) {
  policy::Role worst = policy::Role::grad_output;
  double most = -1;
  for (const auto& [place, tensor] : group.tensors) {
    const double underflow = tensor.survey.underflow();
    if (tensor.quantizer.empty() || !(underflow > most)) continue;
    most = underflow, worst = place.second;
  }
  return worst;
}

std::string steps_map(const ReportGroup& group) {
  const policy::Role role = worst_role(group);
  std::set<int64_t> all_steps;
  std::map<std::string, double> badness;
  double high = 0;
  for (const auto& [place, tensor] : group.tensors) {
    if (place.second != role) continue;
    for (const auto& [step, sums] : tensor.by_step) {
      const double underflow = survey_of(sums).underflow();
      all_steps.insert(step);
      if (std::isnan(underflow)) continue;
      badness[place.first] = std::max(badness[place.first], underflow);
      high = std::max(high, underflow);
    }
  }
  // Shows as many columns as fit on a page.
  std::vector<int64_t> steps;
  const std::size_t apart = (all_steps.size() + 15) / 16;
  std::size_t count = 0;
  for (const int64_t step : all_steps)
    if (count++ % std::max<std::size_t>(1, apart) == 0) steps.push_back(step);
  const std::vector<std::string> rows = worst_of(group.sites, badness, 40);
  if (rows.empty()) return "";
  std::vector<std::string> heads;
  for (const int64_t step : steps) heads.push_back(std::to_string(step));
  std::vector<html::HeatRow> cells;
  for (const std::string& site : rows) {
    cells.push_back({html::shortened(site, 60), {}});
    for (const int64_t step : steps) {
      html::HeatCell cell;
      const auto& by_step = group.tensor(site, role)->by_step;
      if (const auto found = by_step.find(step); found != by_step.end()) {
        const double underflow = survey_of(found->second).underflow();
        if (!std::isnan(underflow))
          cell = {percents(underflow), "step " + heads[cells.back().cells.size()],
                  high > 0 ? underflow / high : 0};
      }
      cells.back().cells.push_back(std::move(cell));
    }
  }
  return html::heat_map(escaped(html::shortened(group.label, 60)) + ": underflow of " +
                            std::string(policy::name(role)) + ", %, by step",
                        heads, cells);
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
      if (!group->resolved.empty() && groups.size() < most_groups) groups.push_back(group);
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
             "roles: "
             "the list under the table explains the letters. ≠ marks a difference from the first "
             "policy. Sites whose names "
             "differ only in a number and that get the same treatment share a line.") +
         text;
}

std::string site_panel(const ReportData& data) {
  const auto groups = data.that([](const ReportGroup& g) { return !g.tensors.empty(); });
  if (groups.empty())
    return absent("No surveys are here", "halftone-lab run POLICY... --probe 50 --out runs");
  const std::size_t shown = std::min(groups.size(), most_groups);
  const std::size_t most = std::clamp<std::size_t>(300 / shown, 20, 50);
  std::string text, links;
  for (const Statistic& what : statistics) {
    const std::string anchor = std::string("site-") + what.anchor;
    links +=
        (links.empty() ? "" : " · ") + html::element("a", "href=\"#" + anchor + "\"", what.name);
    text += html::element("h3", "id=\"" + anchor + "\"", defined(what.name, what.anchor));
    std::string maps;
    const Colors colors = colors_of(groups, what);
    for (std::size_t g = 0; g < shown; ++g) maps += heat_map_of(*groups[g], what, colors, most);
    text += maps.empty() ? paragraph("Nothing is rounded in these runs.")
                         : html::element("div", "class=\"maps\"", "\n" + maps) + "\n";
  }
  std::string note =
      "All seeds, sampled steps and inputs of a role together; strong color is bad. "
      "An empty cell: no rounding there.";
  if (shown < groups.size())
    note += " Shown are " + std::to_string(shown) + " of " + std::to_string(groups.size()) +
            " policies; the others: halftone-lab table DIR... --csv.";
  return html::element("p", "class=\"links\"", links) + paragraph(note) + text;
}

std::string step_panel(const ReportData& data) {
  std::string text;
  std::size_t shown = 0;
  for (const ReportGroup& group : data.groups)
    if (shown < most_groups) {
      const std::string map = steps_map(group);
      text += map, shown += !map.empty();
    }
  if (text.empty())
    return absent("No surveys of roundings are here",
                  "halftone-lab run POLICY... --probe 50 --out runs");
  return paragraph("For each policy, the role with the most underflow.") +
         html::element("div", "class=\"maps\"", "\n" + text) + "\n";
}

}  // namespace halftone::lab
