// Figures of panel 1: which policy is better, and what its bits buy.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include <halftone/lab/draw/svg.h>
#include <halftone/lab/operand_formats.h>
#include <halftone/lab/report/report_page.h>
#include <halftone/lab/statistics.h>

namespace halftone::lab {

namespace {

constexpr std::size_t most_curves = 10;  // in one figure, each with a color of its own

/// Short names of groups in figures. A sweep's cell is named by the axes that differ, each by its
/// last words that no other axis ends with: "w.format=int4, x.format=int3".
class ShortNames {
 public:
  explicit ShortNames(const std::vector<const ReportGroup*>& groups) {
    std::map<std::string, std::set<std::string>> values;
    std::set<std::string> policies;
    for (const ReportGroup* group : groups) {
      policies.insert(group->cell.values.empty() ? group->policy : group->cell.policy);
      for (const auto& [axis, value] : group->cell.values) values[axis].insert(value);
    }
    several_policies_ = policies.size() > 1;
    for (const auto& [axis, all] : values)
      if (all.size() > 1) axes_[axis] = axis;
    for (auto& [axis, name] : axes_) name = last_words(axis);
  }
  /// Returns the axes that differ, with their short names.
  const std::map<std::string, std::string>& axes() const { return axes_; }
  /// Returns the group's name without one of the axes ("": with all).
  std::string of(const ReportGroup& group, const std::string& without = "") const {
    const SweepCell& cell = group.cell;
    if (axes_.empty() || cell.values.empty() || group.label != group.policy) return group.label;
    std::string text = several_policies_ ? cell.policy : "";
    for (const auto& [axis, value] : cell.values)
      if (const auto found = axes_.find(axis); found != axes_.end() && axis != without)
        text += (text.empty() ? "" : ", ") + found->second + "=" + value;
    return text.empty() ? group.label : text;
  }

 private:
  /// Returns the end of the axis's name, from a dot on, that no other axis ends with; else the
  /// name.
  std::string last_words(const std::string& axis) const {
    for (std::size_t dot = axis.rfind('.'); dot != std::string::npos && dot > 0;
         dot = axis.rfind('.', dot - 1)) {
      const std::string end = axis.substr(dot);
      if (end.find_first_not_of("0123456789", 1) == std::string::npos) continue;  // of a list
      const auto ends_so = [&](const auto& other) {
        return other.first != axis && other.first.ends_with(end);
      };
      if (std::ranges::none_of(axes_, ends_so)) return end.substr(1);
    }
    return axis;
  }

  bool several_policies_ = false;
  std::map<std::string, std::string> axes_{};  // short name by name
};

/// The differences of all groups from the first, paired by seed, with 95 % intervals.
std::string difference_forest(const std::vector<const ReportGroup*>& groups,
                              const ShortNames& names) {
  const ReportGroup& base = *groups.front();
  svg::Forest forest{.title = "final loss against " + names.of(base),
                     .unit = "%",
                     .axis = "difference in percent, 95 % interval",
                     .rows = {}};
  for (const ReportGroup* group : groups) {
    const std::vector<double> paired = group->paired(base, "loss");
    if (group == &base || paired.empty()) continue;
    const Interval interval = interval_of(paired);
    forest.rows.push_back(
        {names.of(*group), 100 * interval.mean, 100 * interval.half, group->style});
  }
  return forest.rows.empty() ? "" : svg::draw(forest);
}

/// Mean bits of the operands of a group's products, of all roles alike; NaN if no run recorded
/// them.
double bits_of(const ReportGroup& group) {
  double sum = 0;
  for (const std::string_view role : operand_role_names)
    sum += median(group.numbers("operands." + std::string(role) + "_bits"));
  return sum / double(operand_roles);
}

/// The loss of each group over its bits. The line joins the groups of which no other has fewer bits
/// and a lower loss (the Pareto front).
std::string bits_and_losses(const std::vector<const ReportGroup*>& groups,
                            const ShortNames& names) {
  svg::Plot plot{.title = "final loss over bits of operands"};
  plot.x.label = "mean bits of weights, inputs and gradients of results", plot.y.label = "loss";
  std::vector<svg::Point> all;
  for (const ReportGroup* group : groups) {
    const svg::Point point{bits_of(*group),
                           interval_of(group->numbers_beside(groups, "loss")).mean};
    if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
    all.push_back(point);
    plot.curves.push_back({.name = names.of(*group), .points = {point}, .style = group->style});
  }
  if (all.size() < 2 || std::ranges::all_of(all, [&](auto& p) { return p.x == all[0].x; }))
    return "";
  std::ranges::sort(all, {}, [](const svg::Point& p) { return std::pair(p.x, p.y); });
  svg::Curve front{.name = "no other has fewer bits and a lower loss",
                   .points = {},
                   .style = 7,
                   .staircase = true,
                   .shapes = false};
  for (const svg::Point& p : all)
    if (front.points.empty() || p.y < front.points.back().y) front.points.push_back(p);
  if (front.points.back().x < all.back().x)
    front.points.push_back({all.back().x, front.points.back().y});
  plot.curves.push_back(std::move(front));
  return svg::draw(plot);
}

/// Draws the losses over the values of one axis of a sweep, a curve for each setting of the others.
std::string losses_over(const std::string& axis, const std::vector<const ReportGroup*>& groups,
                        const ShortNames& names) {
  std::map<std::string, std::map<double, Interval>> curves;
  double low = std::numeric_limits<double>::infinity(), high = 0;
  for (const ReportGroup* group : groups) {
    const auto value = group->cell.values.find(axis);
    if (value == group->cell.values.end()) continue;
    const std::optional<double> number = number_of(value->second);
    const std::vector<double> losses = group->numbers("loss");
    if (!number || losses.empty()) continue;
    curves[names.of(*group, axis)][*number] = interval_of(losses);
    low = std::min(low, *number), high = std::max(high, *number);
  }
  const std::string& shown = names.axes().at(axis);
  svg::Plot plot{.title = "final loss over " + shown};
  plot.x = {.label = shown, .logarithmic = low > 0 && high >= 8 * low}, plot.y.label = "loss";
  for (const auto& [name, points] : curves) {
    if (points.size() < 2) continue;
    if (plot.curves.size() == most_curves) {
      plot.title += ", the first " + std::to_string(most_curves) + " settings";
      break;
    }
    const int style = int(plot.curves.size());
    svg::Curve curve{.name = name, .points = {}, .style = style};
    svg::Band band{.name = name + ": 95 % interval of the mean",
                   .x = {},
                   .low = {},
                   .high = {},
                   .style = style};
    for (const auto& [x, loss] : points) {
      curve.points.push_back({x, loss.mean});
      if (!std::isfinite(loss.half)) continue;
      band.x.push_back(x);
      band.low.push_back(loss.mean - loss.half), band.high.push_back(loss.mean + loss.half);
    }
    if (band.x.size() > 1) plot.bands.push_back(std::move(band));
    plot.curves.push_back(std::move(curve));
  }
  return plot.curves.empty() ? "" : svg::draw(plot);
}

}  // namespace

std::string choice_figures(const std::vector<const ReportGroup*>& groups) {
  const ShortNames names(groups);
  std::vector<std::string> drawings{difference_forest(groups, names),
                                    bits_and_losses(groups, names)};
  for (const auto& [axis, name] : names.axes())
    if (drawings.size() < 8) drawings.push_back(losses_over(axis, groups, names));
  return figures(drawings);
}

}  // namespace halftone::lab
