// The figures of the report, as pictures.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>

#include <halftone/core/formats/number_format.h>
#include <halftone/lab/draw.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/report/report.h>
#include <halftone/lab/run_folder.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

namespace {

constexpr std::size_t most_curves = 10;  // in one picture, each with a color of its own
constexpr std::size_t most_dots = 50;    // of a row: more would hide each other

/// Adds a curve for each group that has points; only every n-th of many.
template <class PointsOf>
void add_curves(svg::Plot& plot, const Groups& groups, const PointsOf& points_of) {
  for (const ReportGroup* group : groups) {
    const std::vector<svg::Point> all = points_of(*group);
    if (all.empty() || plot.curves.size() == most_curves) continue;
    plot.curves.push_back({.name = group->label, .points = {}, .style = group->style});
    for (std::size_t i = 0; i < all.size(); i += all.size() / 400 + 1)
      plot.curves.back().points.push_back(all[i]);
  }
}
Pictures unless_empty(svg::Plot plot) {
  return plot.curves.empty() ? Pictures{} : Pictures{std::move(plot)};
}
svg::Point point_of(double x, const std::vector<double>& numbers) {
  const Interval i = interval_of(numbers);
  return {x, i.mean, i.mean - i.half, i.mean + i.half};
}

// --- losses

double quantile(std::vector<double> all, double share) {
  if (all.empty()) return svg::automatic;
  std::ranges::sort(all);
  return all[std::size_t(share * double(all.size() - 1))];
}

/// Fits the axis to most of the points, and to 0, so that a few far points do not flatten the
/// rest.
void fit_differences(svg::Plot& plot) {
  std::vector<double> middles{0, 0}, ends{0, 0};
  for (const svg::Curve& curve : plot.curves)
    for (const svg::Point& p : curve.points) {
      middles.push_back(p.y);
      if (std::isfinite(p.low)) ends.insert(ends.end(), {p.low, p.high});
    }
  const double low = std::min({0.0, quantile(middles, 0.02), quantile(ends, 0.1)});
  const double high = std::max({0.0, quantile(middles, 0.98), quantile(ends, 0.9)});
  const double room = std::max(0.08 * (high - low), 0.01);
  plot.y.low = low - room, plot.y.high = high + room;
}

/// Fits the axis to the last three quarters of the steps, so that the first steps, a spike or a
/// policy that diverges do not flatten the rest.
void fit_losses(svg::Plot& plot) {
  double low = HUGE_VAL, high = -HUGE_VAL, least = HUGE_VAL;
  for (const svg::Curve& curve : plot.curves) {
    std::vector<double> all;
    for (const svg::Point& p : curve.points) all.push_back(p.y);
    for (const svg::Point& p : curve.points) low = std::min({low, p.y, p.low});
    const double usual = quantile(all, 0.75);
    least = std::min(least, usual), high = std::max(high, usual);
  }
  high = std::min(high, low + 8 * (least - low));
  const double room = 0.08 * (high - low);
  if (room > 0) plot.y.low = low - room, plot.y.high = high + room;
  for (const svg::Curve& curve : plot.curves)
    for (const svg::Point& p : curve.points)
      if (p.y > plot.y.high) return void(plot.x.label = "step; higher losses are cut off");
}

using Steps = std::map<double, std::vector<double>>;  // numbers of several runs by step

Pictures loss_curves(const Groups& groups) {
  std::size_t seeds = 0;
  svg::Plot plot;
  plot.x.label = "step", plot.y.label = "training loss";
  add_curves(plot, groups, [&](const ReportGroup& group) {
    Steps at;
    for (const ReportRun& run : group.runs)
      for (const svg::Point& p : run.losses) at[p.x].push_back(p.y);
    seeds = std::max(seeds, group.runs.size());
    std::vector<svg::Point> points;
    for (const auto& [step, all] : at) {
      points.push_back({step, median(all)});
      if (all.size() > 1)
        points.back().low = std::ranges::min(all), points.back().high = std::ranges::max(all);
    }
    return points;
  });
  plot.title = "Training loss";
  if (seeds > 1) plot.title += ": the median and the range of " + std::to_string(seeds) + " seeds";
  fit_losses(plot);
  return unless_empty(std::move(plot));
}

/// Adds the differences of two runs' losses in percent of the second one's. Both are means over a
/// twentieth of the steps, fewer at the ends.
void add_differences(Steps& at, const ReportRun& mine, const ReportRun& theirs) {
  std::map<double, double> other;
  for (const svg::Point& p : theirs.losses) other[p.x] = p.y;
  std::vector<double> steps, sums{0}, their_sums{0};  // of all steps before
  for (const svg::Point& p : mine.losses)
    if (const auto found = other.find(p.x); found != other.end()) {
      steps.push_back(p.x), sums.push_back(sums.back() + p.y);
      their_sums.push_back(their_sums.back() + found->second);
    }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const std::size_t own = std::min({steps.size() / 40, i, steps.size() - 1 - i});
    const double base = their_sums[i + own + 1] - their_sums[i - own];
    if (base != 0)
      at[steps[i]].push_back(100 * (sums[i + own + 1] - sums[i - own] - base) / std::abs(base));
  }
}

Pictures loss_differences(const Groups& groups) {
  const ReportGroup& base = *groups.front();
  svg::Plot plot{.title = "Training loss against " + base.label + ", paired by seed"};
  plot.x.label = "step", plot.y.label = "percent";
  plot.rules.push_back({"no difference", 0});
  add_curves(plot, groups, [&](const ReportGroup& group) {
    Steps at;
    for (const ReportRun& run : group.runs)
      if (const auto other = std::ranges::find(base.runs, run.seed, &ReportRun::seed);
          run.seed && &group != &base && other != base.runs.end())
        add_differences(at, run, *other);
    std::vector<svg::Point> points;
    for (const auto& [step, all] : at) points.push_back(point_of(step, all));
    return points;
  });
  fit_differences(plot);
  return unless_empty(std::move(plot));
}

/// The differences of all groups from the first, paired by seed, with 95 % intervals.
Pictures difference_forest(const Groups& groups) {
  const ReportGroup& base = *groups.front();
  svg::Forest forest{.title = "Final loss against " + base.label,
                     .unit = "%",
                     .axis = "difference in percent, paired by seed; 95 % interval, seeds below",
                     .rows = {}};
  for (const ReportGroup* group : groups)
    if (auto paired = group->paired(base, "loss"); group != &base && !paired.empty()) {
      for (double& of_seed : paired) of_seed *= 100;
      const Interval d = interval_of(paired);
      if (paired.size() == 1 || paired.size() > most_dots) paired.clear();
      forest.rows.push_back({group->label, d.mean, d.half, group->style, std::move(paired)});
    }
  return forest.rows.empty() ? Pictures{} : Pictures{forest};
}

/// The loss of each group over its bits. The line joins groups, from the fewest bits up, of which
/// each has a lower loss than the one before, by an interval that excludes 0.
Pictures bits_and_losses(const Groups& groups) {
  svg::Plot plot{.title = "Final loss over bits of operands, 95 % intervals"};
  plot.x.label = "mean bits of weights, inputs, gradients", plot.y.label = "final loss";
  std::map<std::pair<double, double>, const ReportGroup*> by_bits;
  std::set<double> different;
  add_curves(plot, groups, [&](const ReportGroup& group) -> std::vector<svg::Point> {
    const auto bits = group.bits();
    const svg::Point point =
        point_of((bits[0] + bits[1] + bits[2]) / 3, group.numbers_beside(groups, "loss"));
    if (!std::isfinite(point.x) || !std::isfinite(point.y)) return {};
    by_bits[{point.x, point.y}] = &group, different.insert(point.x);
    return {point};
  });
  svg::Curve front{.name = "fewest bits for a loss, where decided",
                   .points = {},
                   .style = 7,
                   .staircase = true,
                   .shapes = false};
  const ReportGroup* last = nullptr;
  for (const auto& [place, group] : by_bits) {
    const Interval d = last ? interval_of(group->paired(*last, "loss")) : Interval{-1, 0};
    if (d.mean + d.half < 0) front.points.push_back({place.first, place.second}), last = group;
  }
  if (front.points.size() > 1) plot.curves.push_back(std::move(front));
  return different.size() < 2 ? Pictures{} : Pictures{plot};
}

/// Draws the losses over the values of each numeric axis of a sweep, a curve for each setting of
/// the others.
Pictures losses_over_axes(const Groups& groups) {
  std::map<std::string, std::set<std::string>> axes;
  for (const ReportGroup* group : groups)
    for (const auto& [axis, value] : group->cell.values) axes[axis].insert(value);
  Pictures pictures;
  for (const auto& [axis, values] : axes) {
    std::map<std::string, svg::Curve> curves;
    double low = HUGE_VAL, high = 0;
    for (const ReportGroup* group : groups) {
      std::string name = group->cell.policy;
      std::optional<double> x;
      for (const auto& [other, value] : group->cell.values)
        if (other == axis) x = number_of(value);
        else if (axes.at(other).size() > 1)
          name += (name.empty() ? "" : ", ") + other + "=" + value;
      const std::vector<double> losses = group->numbers("loss");
      if (!x || losses.empty()) continue;
      curves[name].points.push_back(point_of(*x, losses));
      low = std::min(low, *x), high = std::max(high, *x);
    }
    svg::Plot plot{.title = "Final loss over " + axis};
    plot.x = {.label = axis, .logarithmic = low > 0 && high >= 8 * low}, plot.y.label = "loss";
    for (auto& [name, curve] : curves) {
      if (curve.points.size() < 2 || plot.curves.size() == most_curves) continue;
      std::ranges::sort(curve.points, {}, &svg::Point::x);
      curve.name = name, curve.style = int(plot.curves.size());
      plot.curves.push_back(std::move(curve));
    }
    std::ranges::move(unless_empty(std::move(plot)), std::back_inserter(pictures));
  }
  return pictures;
}

Pictures memory_bars(const Groups& groups) {
  svg::Bars bars{.title = "MiB at the moment of the highest total, by use",
                 .unit = "MiB",
                 .parts = {},
                 .labels = {},
                 .bars = {}};
  for (const MemoryPart& part : memory_parts())
    bars.parts.push_back(part.name), bars.labels.push_back(part.label);
  for (const ReportGroup* group : groups)
    if (std::vector<double> mib = group->memory(); !mib.empty() && bars.bars.size() < 24)
      bars.bars.push_back({group->label, std::move(mib)});
  return bars.bars.empty() ? Pictures{} : Pictures{bars};
}

// --- sites

struct Statistic {
  std::string_view name;
  const char* title;
  double (*value)(const Survey&);
  std::string (*text)(double);
  bool rounded;      // only for tensors that are rounded
  bool least_first;  // the least value is the worst; otherwise sites and roles with 0 are left out
};

constexpr double nothing = 5e-5;  // a share that is shown as 0

/// Two digits after the point below 1 %, otherwise one.
std::string percents(double share) {
  if (share < nothing) return share == 0 ? "0" : "<.01";
  return fixed(100 * share, share < 0.01 ? 2 : 1);
}
std::string whole(double value) { return fixed(std::round(value) + 0.0, 0); }

constexpr Statistic statistics[] = {
    {"underflow", "Numbers that become 0, in percent",
     [](const Survey& s) { return s.underflow(); }, percents, true, false},
    {"saturation", "Numbers beyond the format's largest, in percent",
     [](const Survey& s) { return s.saturation(); }, percents, true, false},
    {"sqnr", "Signal to noise of the rounding (SQNR), in dB",
     [](const Survey& s) { return s.sqnr(); }, whole, true, true},
    {"rms", "log2 of the root mean square",
     [](const Survey& s) { return std::log2(s.root_mean_square()); }, whole, false, true}};

double value_of(const Statistic& what, const ReportTensor* tensor) {
  if (!tensor || (what.rounded && tensor->quantizer.empty())) return svg::automatic;
  return what.value(tensor->survey);
}

/// Keeps the 40 rows with the largest badness, in their order.
void keep_worst(
    std::vector<std::pair<double, std::pair<std::string, std::vector<svg::Cell>>>>& rows) {
  constexpr std::size_t most = 40;
  if (rows.size() <= most) return;
  std::vector<double> all;
  for (const auto& row : rows) all.push_back(row.first);
  std::ranges::nth_element(all, all.begin() + most - 1, std::greater());
  std::size_t kept = 0;
  std::erase_if(rows, [&](const auto& row) { return row.first < all[most - 1] || kept++ >= most; });
}

/// Draws a statistic over sites, roles and policies.
Pictures map_of(const Groups& groups, std::string_view statistic) {
  const Statistic& what = *std::ranges::find(statistics, statistic, &Statistic::name);
  std::vector<std::string> sites;
  std::vector<std::pair<const ReportGroup*, policy::Role>> columns;
  svg::Map map{.title = what.title, .columns = {}, .rows = {}};
  double low = what.least_first ? HUGE_VAL : 0, high = -HUGE_VAL;
  for (const ReportGroup* group :
       std::span(groups).first(std::min<std::size_t>(groups.size(), 8))) {
    std::set<policy::Role> roles;
    for (const std::string& site : group->sites)
      if (std::ranges::find(sites, site) == sites.end()) sites.push_back(site);
    for (const auto& [place, tensor] : group->tensors) {
      const double value = value_of(what, &tensor);
      if (std::isnan(value) || (!what.least_first && value < nothing)) continue;
      roles.insert(place.second);
      if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
    }
    for (const policy::Role role : roles)
      columns.emplace_back(group, role), map.columns.emplace_back(group->label, policy::name(role));
  }
  std::vector<std::pair<double, std::pair<std::string, std::vector<svg::Cell>>>> rows;
  for (const std::string& site : sites) {
    double worst = -HUGE_VAL;
    std::vector<svg::Cell> cells;
    for (const auto& [group, role] : columns) {
      const ReportTensor* const tensor = group->tensor(site, role);
      const double value = value_of(what, tensor);
      svg::Cell& cell = cells.emplace_back();
      if (std::isnan(value)) continue;
      worst = std::max(worst, what.least_first ? -value : value);
      const double share = high > low ? (std::clamp(value, low, high) - low) / (high - low) : 0;
      cell.value = value, cell.strength = what.least_first ? 1 - share : share;
      cell.text = std::isinf(value) ? (value > 0 ? "exact" : "0") : what.text(value);
      cell.title = group->label + ", " + site + " " + std::string(policy::name(role)) + ": " +
                   number(value, 5) + " " + html::shortened(tensor->quantizer, 80);
    }
    if (worst > (what.least_first ? -HUGE_VAL : nothing))
      rows.emplace_back(worst, std::pair(site, std::move(cells)));
  }
  if (rows.empty()) return {};
  const std::size_t all = rows.size();
  keep_worst(rows);
  if (rows.size() < all)
    map.title += "; the " + std::to_string(rows.size()) +
                 (what.least_first ? " lowest of " : " highest of ") + std::to_string(all) +
                 " sites";
  for (auto& [bad, row] : rows) map.rows.push_back(std::move(row));
  if (columns.size() <= 9) return {map};
  Pictures parts;  // a map for each policy: one would be too wide
  for (std::size_t from = 0, to = 0; from < columns.size(); from = to) {
    while (to < columns.size() && columns[to].first == columns[from].first) ++to;
    svg::Map part{.title = map.title, .columns = {}, .rows = {}};
    const auto at = [&](auto& all) { return std::span(all).subspan(from, to - from); };
    part.columns.assign(at(map.columns).begin(), at(map.columns).end());
    for (auto& [name, cells] : map.rows)
      part.rows.push_back({name, {at(cells).begin(), at(cells).end()}});
    parts.emplace_back(std::move(part));
  }
  return parts;
}

Pictures maps_of_sites(const Groups& groups) {
  Pictures all;
  for (const Statistic& what : statistics)
    std::ranges::move(map_of(groups, what.name), std::back_inserter(all));
  return all;
}

/// Draws a curve for each of the five tensors of a policy whose points go farthest from 0.
template <class PointsOf>
Pictures farthest(const Groups& groups, const char* title, const char* label,
                  const PointsOf& points_of) {
  Pictures pictures;
  for (const ReportGroup* group : groups) {
    std::vector<std::pair<double, svg::Curve>> all;
    for (const auto& [place, tensor] : group->tensors) {
      const std::vector<svg::Point> points = points_of(tensor);
      double most = -1;
      for (const svg::Point& p : points) most = std::max(most, std::abs(p.y));
      if (most >= 100 * nothing)
        all.push_back(
            {most, {place.first + " " + std::string(policy::name(place.second)), points}});
    }
    std::ranges::stable_sort(all, std::greater(), [](const auto& entry) { return entry.first; });
    svg::Plot plot{.title = group->label + ": " + title};
    plot.x.label = "step", plot.y.label = label;
    for (auto& [most, curve] : std::span(all).first(std::min<std::size_t>(all.size(), 5))) {
      curve.style = int(plot.curves.size());
      plot.curves.push_back(std::move(curve));
    }
    if (pictures.size() < 8) std::ranges::move(unless_empty(plot), std::back_inserter(pictures));
  }
  return pictures;
}

Pictures underflow_by_step(const Groups& groups) {
  return farthest(groups, "tensors that lose most, by step", "percent that become 0",
                  [](const ReportTensor& tensor) {
                    std::vector<svg::Point> points;
                    for (const auto& [step, sums] : tensor.by_step) {
                      Survey survey;
                      survey.sums = sums;
                      points.push_back({double(step), 100 * survey.underflow()});
                    }
                    return points;
                  });
}

// --- sizes of numbers, errors, updates

/// Returns the range of a tensor's own format, in numbers of the tensor: moved by the mean of its
/// scales; with a scale a block by that of a block with the largest number.
std::optional<svg::Range> own_range(const ReportTensor& tensor) {
  const std::string name = tensor.quantizer.substr(0, tensor.quantizer.find_first_of(", "));
  if (!number_format_named(name)) return {};
  svg::Range range = range_of_format(name);
  double shift = 0;
  for (const auto& [step, scale] : tensor.scales)
    shift -= std::log2(scale.first) / double(tensor.scales.size());
  if (tensor.scales.empty() && tensor.quantizer.find("blocks of") != std::string::npos)
    shift = std::log2(tensor.survey.sums.largest) - range.high;
  if (!std::isfinite(shift)) shift = 0;
  range.low += shift, range.high += shift, range.faint_low += shift;
  if (shift != 0) range.name += tensor.scales.empty() ? ", largest block" : ", scaled";
  return range;
}

/// Returns the ten tensors that lose most, each under the policy where it is worst: by underflow
/// where something rounds, then by the least signal to noise, then by what f16 would lose.
using Place = std::pair<const ReportGroup*, const decltype(ReportGroup::tensors)::value_type*>;
std::vector<Place> worst_places(const Groups& groups) {
  std::vector<std::pair<std::array<double, 3>, Place>> all;
  for (const ReportGroup* group : groups)
    for (const auto& tensor : group->tensors) {
      const Survey& s = tensor.second.survey;
      if (!(s.sums.count - s.sums.zeros > 0)) continue;
      const auto or_else = [](double x, double y) { return std::isnan(x) ? y : x; };
      const bool rounds = !tensor.second.quantizer.empty();
      all.push_back({{rounds ? or_else(s.underflow(), 0) : 0,
                      rounds ? -or_else(s.sqnr(), HUGE_VAL) : -HUGE_VAL,
                      or_else(s.would_underflow(formats::f16), 0)},
                     {group, &tensor}});
    }
  std::ranges::stable_sort(all, std::greater(), [](const auto& entry) { return entry.first; });
  std::set<std::pair<std::string, policy::Role>> taken;
  std::vector<Place> result;
  for (const auto& [badness, place] : all)
    if (result.size() < 10 &&
        taken.emplace(without_numbers(place.second->first.first), place.second->first.second)
            .second)
      result.push_back(place);
  return result;
}

Pictures exponents(const Groups& groups) {
  Pictures pictures;
  double low = -28, high = 18;  // of all plots, so that they can be compared
  for (const auto& [group, tensor] : worst_places(groups)) {
    const Survey& survey = tensor->second.survey;
    svg::Plot plot{.title = tensor->first.first + " " +
                            std::string(policy::name(tensor->first.second)) + ", " + group->label};
    if (const double lost = survey.underflow(); !tensor->second.quantizer.empty() && lost >= 0)
      plot.title += ": " + number(100 * lost, 3) + " % become 0";
    if (const auto lift = survey.sufficient_lift(formats::f16);
        lift && *lift > 0 && tensor->second.quantizer.find('e') != 0)
      plot.title += "; a scale of 2^" + std::to_string(*lift) + " would do for f16";
    plot.x.label = "log2 |x|", plot.y.label = "percent";
    svg::Curve curve =
        distribution(group->label, survey.binade, Survey::lowest_exponent, group->style);
    if (curve.points.empty()) continue;
    low = std::min(low, curve.points.front().x), high = std::max(high, curve.points.back().x);
    curve.filled = true, plot.curves.push_back(std::move(curve));
    plot.ranges = ranges_of_formats();
    if (auto own = own_range(tensor->second)) plot.ranges.push_back(*std::move(own));
    plot.height = 200;
    pictures.emplace_back(std::move(plot));
  }
  for (svg::Picture& picture : pictures)
    std::get<svg::Plot>(picture).x.low = low, std::get<svg::Plot>(picture).x.high = high;
  return pictures;
}

/// Returns the first number in the path of a site's module, which is the number of its block or
/// layer.
std::optional<int> block_of(const std::string& site) {
  const std::string path = site.substr(0, site.find('/'));
  for (std::size_t at = 0; at < path.size(); ++at)
    if (const std::size_t digits = number_at(path, at); digits > 0 && digits < 6)
      return std::stoi(path.substr(at, digits));
  return {};
}

/// Draws the relative error of the sites of one block over the block's number, for each role. A
/// line joins neighbors with the same formats.
Pictures errors_by_block(const Groups& groups) {
  Pictures pictures;
  for (const policy::Role role :
       {policy::Role::input, policy::Role::weight, policy::Role::grad_output}) {
    svg::Plot plot{.title = "Error of roundings by block: " + std::string(policy::name(role))};
    plot.x.label = "number of the block or layer",
    plot.y = {.label = "percent of the tensor", .low = 0};
    std::set<double> blocks;
    add_curves(plot, groups, [&](const ReportGroup& group) {
      std::map<int, RoleErrors> errors;
      std::map<int, std::set<std::string>> formats;
      for (const auto& [place, tensor] : group.tensors)
        if (const auto block = block_of(place.first); block && place.second == role) {
          errors[*block].add(role, tensor);
          if (!tensor.quantizer.empty()) formats[*block].insert(short_format(tensor.quantizer));
        }
      std::vector<svg::Point> points;
      for (const auto& [block, sums] : errors) {
        if (sums.tensors == 0) continue;
        if (!points.empty() && formats[block] != formats[int(points.back().x)])
          points.push_back({points.back().x, svg::automatic});
        points.push_back({double(block), 100 * sums.size()}), blocks.insert(block);
      }
      return points;
    });
    if (blocks.size() > 1) pictures.emplace_back(std::move(plot));
  }
  return pictures;
}

Pictures updates(const Groups& groups) {
  using Sums = policy::UpdateSums;
  Pictures pictures;
  const auto add = [&](svg::Plot plot, double (*value)(const Sums&)) {
    plot.x.label = "step";
    std::set<double> different;
    add_curves(plot, groups, [&](const ReportGroup& group) {
      std::vector<svg::Point> points;
      for (const auto& [step, sums] : group.updates)
        points.push_back({double(step), value(sums)}), different.insert(points.back().y);
      return points;
    });
    if (different.size() > 1) pictures.emplace_back(std::move(plot));
  };
  add({.title = "Updates that leave the weight as it was", .y = {.label = "percent"}},
      [](const Sums& s) { return 100 * s.lost_share(); });
  add({.title = "Effective descent: the part of updates that steps apply", .y = {.label = "share"}},
      [](const Sums& s) { return s.effective_descent(); });
  add({.title = "Size of updates relative to the weights",
       .y = {.label = "|u| / |w|", .logarithmic = true}},
      [](const Sums& s) { return s.update_ratio(); });
  svg::Plot sizes{.title = "Updates in spacings of the weights"};
  sizes.x.label = "log2(|u| / ulp(w))", sizes.y.label = "percent of the updates";
  sizes.rules.push_back({"left of it: lost by rounding to nearest", -1, true});
  add_curves(sizes, groups, [](const ReportGroup& group) {
    return distribution("", group.by_ulp, policy::UpdateRow::lowest_bin, 0).points;
  });
  for (svg::Curve& curve : sizes.curves) curve.staircase = true;
  std::ranges::move(unless_empty(sizes), std::back_inserter(pictures));
  return pictures;
}

// --- scales and switches

/// Draws a staircase for each run.
Pictures staircases(const Groups& groups, const char* title, const char* label,
                    std::vector<svg::Point> ReportRun::*points, double (*value)(double)) {
  svg::Plot plot{.title = title};
  plot.x.label = "step", plot.y.label = label;
  std::size_t most = 0;
  for (const ReportGroup* group : groups) most = std::max(most, group->runs.size());
  for (std::size_t run = 0; run < most; ++run)
    add_curves(plot, groups, [&](const ReportGroup& group) {
      std::vector<svg::Point> all;
      if (run < group.runs.size()) all = group.runs[run].*points;
      for (svg::Point& p : all) p.y = value(p.y);
      return all;
    });
  for (svg::Curve& curve : plot.curves) curve.staircase = true;
  return unless_empty(std::move(plot));
}

Pictures scales(const Groups& groups) {
  Pictures pictures = staircases(groups, "Loss scale", "log2", &ReportRun::loss_scales,
                                 [](double scale) { return std::log2(scale); });
  const auto skips = [](const ReportRun& run) {
    return !run.skipped.empty() && run.skipped.back().y > 0;
  };
  if (std::ranges::any_of(
          groups, [&](const ReportGroup* g) { return std::ranges::any_of(g->runs, skips); }))
    std::ranges::move(staircases(groups, "Steps that were skipped, so far", "steps",
                                 &ReportRun::skipped, [](double steps) { return steps; }),
                      std::back_inserter(pictures));
  std::ranges::move(
      farthest(groups, "the scale used over the ideal one", "log2",
               [](const ReportTensor& tensor) {
                 std::vector<svg::Point> points;
                 for (const auto& [step, scale] : tensor.scales)
                   points.push_back({double(step), std::log2(scale.first / scale.second)});
                 return points;
               }),
      std::back_inserter(pictures));
  return pictures;
}

/// A bar for the steps in which a rule was on at a site.
Pictures switches(const Groups& groups) {
  constexpr std::size_t most_sites = 40;
  Pictures pictures;
  for (const ReportGroup* group : groups) {
    const auto steps = group->numbers("steps");
    const double end = steps.empty() ? 0 : steps[0];
    std::map<std::string, std::map<std::string, std::vector<svg::Range>>> rules;
    for (const RecordedSwitch& s : group->switches) {
      auto& bars = rules[s.rule][s.site];
      if (s.on) bars.push_back({s.site, double(s.step), end});
      else if (!bars.empty()) bars.back().high = double(s.step);
    }
    for (const auto& [rule, sites] : rules) {
      svg::Plot plot{.title = group->label + ": steps in which \"" + rule + "\" was on, at " +
                              std::to_string(sites.size()) + " sites"};
      plot.x = {.label = "step", .low = 0, .high = end};
      std::size_t count = 0;
      for (const auto& [site, bars] : sites)
        if (count++ < most_sites) plot.ranges.insert(plot.ranges.end(), bars.begin(), bars.end());
      if (!plot.ranges.empty() && end > 0) pictures.emplace_back(std::move(plot));
    }
  }
  return pictures;
}

constexpr Figure all_figures[] = {
    {"losses", loss_curves},
    {"differences", loss_differences},
    {"forest", difference_forest},
    {"pareto", bits_and_losses},
    {"axes", losses_over_axes},
    {"memory", memory_bars},
    {"exponents", exponents},
    {"errors", errors_by_block},
    {"updates", updates},
    {"scale", scales},
    {"sites", maps_of_sites},
    {"underflow", [](const Groups& groups) { return map_of(groups, "underflow"); }},
    {"saturation", [](const Groups& groups) { return map_of(groups, "saturation"); }},
    {"sqnr", [](const Groups& groups) { return map_of(groups, "sqnr"); }},
    {"rms", [](const Groups& groups) { return map_of(groups, "rms"); }},
    {"steps", underflow_by_step},
    {"switches", switches}};

}  // namespace

void RoleErrors::add(policy::Role role, const ReportTensor& tensor) {
  constexpr double stalls_below = std::numbers::sqrt3;
  const SurveySums& s = tensor.survey.sums;
  const ErrorParts own = tensor.survey.error_parts();
  if (tensor.quantizer.empty() || !(s.sum_x2 > 0) || std::isnan(own.scale)) return;
  ++tensors, whole += s.sum_e2 / s.sum_x2;
  parts.scale += own.scale / s.sum_x2, parts.dead_zone += own.dead_zone / s.sum_x2;
  parts.grid += own.grid / s.sum_x2, parts.saturation += own.saturation / s.sum_x2;
  flips.merge(tensor.flips);
  if (!policy::is_gradient(role)) return;
  const double ratio = tensor.survey.norm_to_noise();
  if (ratio < stalls_below) ++below;
  least = std::min(least, ratio);
}

std::span<const Figure> figures() { return all_figures; }

Pictures pictures_named(std::string_view name, const ReportData& data) {
  const auto found = std::ranges::find(all_figures, name, &Figure::name);
  const auto lists = data.by_workload();
  Pictures all;
  for (const Groups& groups : lists)
    for (svg::Picture& picture : found->pictures(groups)) {
      if (lists.size() > 1)
        std::visit([&](auto& p) { p.title += ", " + groups.front()->workload; }, picture);
      all.push_back(std::move(picture));
    }
  return all;
}

}  // namespace halftone::lab
