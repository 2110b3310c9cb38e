// Figures of panel 1: which policy is better, and what its bits buy.
#include <algorithm>
#include <cmath>

#include <halftone/lab/draw/svg.h>
#include <halftone/lab/operand_formats.h>
#include <halftone/lab/report/report_page.h>
#include <halftone/lab/statistics.h>

namespace halftone::lab {

namespace {

/// The differences of all groups from the first, paired by seed, with 95 % intervals.
std::string difference_forest(const std::vector<const ReportGroup*>& groups) {
  const ReportGroup& base = *groups.front();
  svg::Forest forest{
      .title = "final loss against " + base.label, .unit = "%, 95 % interval", .rows = {}};
  for (const ReportGroup* group : groups) {
    const std::vector<double> paired = group->paired(base, "loss");
    if (group == &base || paired.empty()) continue;
    const Interval interval = interval_of(paired);
    forest.rows.push_back({group->label, 100 * interval.mean, 100 * interval.half, group->style});
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
std::string bits_and_losses(const std::vector<const ReportGroup*>& groups) {
  svg::Plot plot{.title = "final loss over bits of operands"};
  plot.x.label = "mean bits of weights, inputs and gradients of results", plot.y.label = "loss";
  std::vector<svg::Point> all;
  for (const ReportGroup* group : groups) {
    const svg::Point point{bits_of(*group), interval_of(group->numbers("loss")).mean};
    if (!std::isfinite(point.x) || !std::isfinite(point.y)) continue;
    all.push_back(point);
    plot.curves.push_back({.name = group->label, .points = {point}, .style = group->style});
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

}  // namespace

std::string choice_figures(const std::vector<const ReportGroup*>& groups) {
  return figures({difference_forest(groups), bits_and_losses(groups)});
}

}  // namespace halftone::lab
