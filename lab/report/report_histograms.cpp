// Panels 8 to 10: exponents and the ranges of formats, updates, scales.
#include <algorithm>
#include <cmath>
#include <set>

#include <halftone/core/formats/number_format.h>
#include <halftone/lab/draw/distribution.h>
#include <halftone/lab/draw/html.h>
#include <halftone/lab/report/report_page.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

using html::escaped;

namespace {

/// A tensor of a group; sorted by how bad it is.
struct Place {
  const ReportGroup* group;
  const std::pair<const std::pair<std::string, policy::Role>, ReportTensor>* tensor;
};

/// Sorts by underflow where something rounds, then by the least signal to noise, then by what f16
/// would lose.
std::vector<Place> worst_places(const ReportData& data, std::size_t most) {
  std::vector<std::tuple<double, double, double, Place>> all;
  for (const ReportGroup& group : data.groups)
    for (const auto& tensor : group.tensors) {
      const Survey& s = tensor.second.survey;
      if (!(s.sums.count - s.sums.zeros > 0)) continue;
      const auto number_or = [](double x, double otherwise) {
        return std::isnan(x) ? otherwise : x;
      };
      const bool rounds = !tensor.second.quantizer.empty();
      all.emplace_back(rounds ? number_or(s.underflow(), 0) : 0,
                       rounds ? -number_or(s.sqnr(), HUGE_VAL) : -HUGE_VAL,
                       number_or(s.would_underflow(formats::f16), 0), Place{&group, &tensor});
    }
  std::ranges::stable_sort(all, [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a), std::get<2>(a)) >
           std::tie(std::get<0>(b), std::get<1>(b), std::get<2>(b));
  });
  // Takes each tensor once, from the policy under which it is worst.
  std::set<std::pair<std::string, policy::Role>> taken;
  std::vector<Place> result;
  for (const auto& entry : all)
    if (result.size() < most && taken.insert(std::get<3>(entry).tensor->first).second)
      result.push_back(std::get<3>(entry));
  return result;
}

/// Returns the format at the start of a quantizer's description; "" if it has no name.
std::string format_in(const std::string& quantizer) {
  const std::string name = quantizer.substr(0, quantizer.find_first_of(", "));
  return number_format_named(name) ? name : "";
}

std::string exponents_of(const Place& place, double low, double high) {
  const Survey& survey = place.tensor->second.survey;
  const auto& [site, role] = place.tensor->first;
  svg::Plot plot{.title = html::shortened(site, 34) + " " + std::string(policy::name(role))};
  plot.x = {.label = "log2 |x|", .low = low, .high = high};
  plot.y.label = "percent";
  double total = 0;
  for (const double count : survey.binade) total += count;
  svg::Histogram bars{
      .name = {}, .first = low, .width = 1, .heights = {}, .style = place.group->style};
  for (int e = int(low); e < int(high); ++e) {
    const int bin = e - Survey::lowest_exponent;
    const bool inside = bin >= 0 && bin < Survey::binades;
    bars.heights.push_back(inside && total > 0 ? 100 * survey.binade[std::size_t(bin)] / total : 0);
  }
  plot.histograms.push_back(std::move(bars));
  plot.ranges = ranges_of_formats(format_in(place.tensor->second.quantizer));
  plot.width = 420, plot.height = 200;
  return svg::draw(plot);
}

std::string lift_of(const Survey& survey, std::string_view format) {
  const auto lift = survey.sufficient_lift(*number_format_named(format));
  return lift ? "2^" + std::to_string(*lift) : "-";
}

// --- updates

std::string update_plot(const std::vector<const ReportGroup*>& groups, const char* title,
                        const char* label, bool logarithmic,
                        double (*value)(const policy::UpdateSums&)) {
  svg::Plot plot{.title = title};
  plot.x.label = "step", plot.y = {.label = label, .logarithmic = logarithmic};
  for (const ReportGroup* group : groups) {
    svg::Curve curve{.name = group->label, .points = {}, .style = group->style};
    for (const auto& [step, sums] : group->updates)
      curve.points.push_back({double(step), value(sums)});
    plot.curves.push_back(std::move(curve));
  }
  return svg::draw(plot);
}

std::string ulp_plot(const std::vector<const ReportGroup*>& groups) {
  svg::Plot plot{.title = "updates by size"};
  plot.x.label = "log2(|u| / ulp(w))", plot.y.label = "percent of the updates";
  plot.rules.push_back({"left of it: lost by rounding to nearest", -1, true});
  for (const ReportGroup* group : groups) {
    svg::Curve curve =
        distribution(group->label, group->by_ulp, policy::UpdateRow::lowest_bin, group->style);
    if (curve.points.empty()) continue;
    plot.curves.push_back(std::move(curve));
  }
  return svg::draw(plot);
}

// --- scales

/// Draws a curve per run, constant between values. Takes only every n-th of many points.
std::string staircases(const ReportData& data, const char* title, const char* label,
                       std::vector<svg::Point> ReportRun::*points, double (*value)(double)) {
  svg::Plot plot{.title = title};
  plot.x.label = "step", plot.y.label = label;
  for (const ReportGroup& group : data.groups)
    for (const ReportRun& run : group.runs) {
      const std::vector<svg::Point>& all = run.*points;
      svg::Curve curve{.name = group.label, .points = {}, .style = group.style, .staircase = true};
      for (std::size_t i = 0; i < all.size(); i += all.size() / 400 + 1)
        curve.points.push_back({all[i].x, value(all[i].y)});
      if (!curve.points.empty() && plot.curves.size() < 12) plot.curves.push_back(std::move(curve));
    }
  return plot.curves.empty() ? "" : svg::draw(plot);
}

std::string loss_scales(const ReportData& data) {
  return staircases(data, "loss scale", "log2", &ReportRun::loss_scales,
                    [](double scale) { return std::log2(scale); });
}

std::string skipped_steps(const ReportData& data) {
  for (const ReportGroup& group : data.groups)
    for (const ReportRun& run : group.runs)
      if (!run.skipped.empty() && run.skipped.back().y > 0)
        return staircases(data, "steps that were skipped, so far", "steps", &ReportRun::skipped,
                          [](double steps) { return steps; });
  return "";
}

/// Draws the used scale over the ideal scale, for the tensors with the largest difference.
std::string tensor_scales(const ReportGroup& group) {
  struct Stale {
    double most;
    std::string name;
    const ReportTensor* tensor;
  };
  std::vector<Stale> all;
  for (const auto& [place, tensor] : group.tensors) {
    double most = -1;
    for (const auto& [step, scale] : tensor.scales)
      most = std::max(most, std::abs(std::log2(scale.first / scale.second)));
    if (most >= 0)
      all.push_back({most, place.first + " " + std::string(policy::name(place.second)), &tensor});
  }
  if (all.empty()) return "";
  std::ranges::stable_sort(all, std::greater(), &Stale::most);
  svg::Plot plot{.title = html::shortened(group.label, 36) + ": scale used / ideal"};
  plot.x.label = "step", plot.y.label = "log2";
  plot.rules.push_back({"as the tensor asked for", 0});
  for (std::size_t i = 0; i < std::min<std::size_t>(all.size(), 5); ++i) {
    svg::Curve curve{.name = all[i].name, .points = {}, .style = int(i)};
    for (const auto& [step, scale] : all[i].tensor->scales)
      curve.points.push_back({double(step), std::log2(scale.first / scale.second)});
    plot.curves.push_back(std::move(curve));
  }
  return svg::draw(plot);
}

}  // namespace

std::string histogram_panel(const ReportData& data) {
  const std::vector<Place> places = worst_places(data, 10);
  if (places.empty())
    return absent("No surveys are here", "halftone-lab run POLICY... --probe 50 --out runs");
  // All plots share one axis, so that they can be compared.
  double low = -28, high = 18;
  for (const Place& place : places)
    for (int i = 0; i < Survey::binades; ++i)
      if (place.tensor->second.survey.binade[std::size_t(i)] > 0) {
        low = std::min(low, double(Survey::lowest_exponent + i));
        high = std::max(high, double(Survey::lowest_exponent + i + 1));
      }
  std::vector<std::string> drawings;
  std::vector<std::string> heads{"site", "role", "policy", defined("underflow, %", "underflow")};
  for (const std::string_view format : shown_formats)
    heads.push_back(defined("scale for " + std::string(format), "sufficient"));
  html::Table table(heads, 3);
  for (const Place& place : places) {
    drawings.push_back(exponents_of(place, low, high));
    const Survey& survey = place.tensor->second.survey;
    const bool rounds = !place.tensor->second.quantizer.empty();
    std::vector<std::string> cells{
        escaped(html::shortened(place.tensor->first.first, 60)),
        std::string(policy::name(place.tensor->first.second)),
        escaped(html::shortened(place.group->label, 40)),
        rounds && !std::isnan(survey.underflow()) ? number(100 * survey.underflow(), 3) : "-"};
    for (const std::string_view format : shown_formats) cells.push_back(lift_of(survey, format));
    table.row(cells);
  }
  return paragraph(
             "The ten tensors that lose most, each under the policy where it is worst: the "
             "share of its numbers by size. The bars above are the numbers that formats hold, "
             "paler where they are subnormal. The last bar is the tensor's own format, without "
             "its scale.") +
         figures(drawings) + table.text();
}

std::string update_panel(const ReportData& data) {
  const auto groups = data.that([](const ReportGroup& g) { return !g.updates.empty(); });
  if (groups.empty())
    return absent("No updates were watched", "halftone-lab run POLICY... --probe 50 --out runs");
  html::Table table({"policy", defined("lost, %", "lost"), "as forward sees it, %",
                     defined("effective descent", "descent"), "as forward sees it",
                     defined("update ratio", "ratio")});
  for (const ReportGroup* group : groups)
    table.row(
        {escaped(html::shortened(group->label, 80)), number(100 * group->stored.lost_share(), 3),
         number(100 * group->seen.lost_share(), 3), number(group->stored.effective_descent(), 4),
         number(group->seen.effective_descent(), 4), number(group->stored.update_ratio(), 3)});
  return figures({update_plot(groups, "updates that were lost", "percent", false,
                              [](const policy::UpdateSums& s) { return 100 * s.lost_share(); }),
                  update_plot(groups, "effective descent", "1: as meant", false,
                              [](const policy::UpdateSums& s) { return s.effective_descent(); }),
                  update_plot(groups, "update ratio", "|u| / |w|", true,
                              [](const policy::UpdateSums& s) { return s.update_ratio(); }),
                  ulp_plot(groups)}) +
         table.text() +
         paragraph(
             "All parameters and seeds together; curves are of the weights as they are "
             "stored, with masters, remainders and compensation.");
}

std::string scale_panel(const ReportData& data) {
  std::vector<std::string> drawings{loss_scales(data), skipped_steps(data)};
  for (const ReportGroup& group : data.groups)
    if (drawings.size() < 10) drawings.push_back(tensor_scales(group));
  const std::string text = figures(drawings);
  if (text.empty())
    return absent(
        "No policy of these runs has a loss scale or scales of tensors",
        "halftone-lab run amp-fp16 policies/te_delayed_hybrid.json --probe 50 --out runs");
  return text + paragraph(
                    "Which tensor overflowed in a skipped step: halftone-lab explain POLICY "
                    "--workload W. The ideal scale is the one that fits the tensor of "
                    "that step.");
}

}  // namespace halftone::lab
