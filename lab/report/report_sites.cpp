// Panels 5 and 7: the effect of its treatment on the tensors of each site.
#include <algorithm>
#include <cmath>
#include <set>

#include <halftone/lab/draw/html.h>
#include <halftone/lab/report/report_page.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

using html::escaped;

namespace {

constexpr std::size_t most_groups = 8;

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
