// Panels on findings, histograms and sites.
#include <algorithm>
#include <cmath>
#include <set>

#include <halftone/core/formats/number_format.h>
#include <halftone/lab/draw.h>
#include <halftone/lab/report/page.h>
#include <halftone/lab/report/report.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

// Panels 11 to 14: comparison, search, strategies, definitions.

using html::escaped;
using nlohmann::json;

namespace {

std::string number_text(const json& object, const char* key, int digits = 3) {
  const auto value = number_in(object, key);
  return value ? number(*value, digits) : "-";
}

std::string short_text(const json& object, const char* key, std::size_t most) {
  return escaped(html::shortened(text_in(object, key), most));
}

std::string comparison_of(const std::filesystem::path& path) {
  constexpr std::size_t most_rows = 150;
  const json file = read_json("report", path);
  html::Table table({"site", "role", defined("rounding", "rounding"), defined("local", "local"),
                     defined("amplification", "amplification"), defined("twin", "twin"), "why"},
                    2);
  const auto first = count_in(file, "first");
  int64_t number_of_row = 0;
  std::size_t left_out = 0;
  for (const json& row : array_in(file, "rows")) {
    const bool is_first = first == number_of_row++;
    const auto local = number_in(row, "local");
    // A tensor that was not rounded, with no rounded tensor before it, carries no information.
    if (!number_in(row, "rounding") && !(local && *local > 0)) continue;
    if (table.rows() >= most_rows && !is_first) {
      ++left_out;
      continue;
    }
    const std::string site = short_text(row, "site", 70);
    table.row({is_first ? "<b class=\"differs\">→ " + site + "</b>" : site,
               short_text(row, "role", 30), number_text(row, "rounding", 2),
               number_text(row, "local", 2), number_text(row, "amplification", 2),
               number_text(row, "twin", 2),
               (is_first ? "the first that deviates: " : "") + short_text(row, "reason", 120)});
  }
  std::string text = paragraph(
      html::shortened(text_in(file, "policy"), 80) + " against " +
      html::shortened(text_in(file, "reference"), 80) + ", one batch of " +
      html::shortened(text_in(file, "workload"), 80) + ": loss " +
      number_text(file, "candidate_loss", 6) + ", of the reference " +
      number_text(file, "reference_loss", 6) + "." +
      (first ? ""
             : " Nothing deviates: every rounding is as its format predicts, and no operation "
               "amplifies."));
  text += table.text();
  if (left_out > 0) text += paragraph(std::to_string(left_out) + " more rows are in the file.");
  return text;
}

/// Returns the plot position of an object that has bytes and an error.
std::optional<svg::Point> place_of(const json& object) {
  const auto bytes = number_in(object, "bytes"), error = number_in(object, "error");
  if (!bytes || !error) return {};
  return svg::Point{*bytes / 1048576, *error};
}

std::string frontier_plot(const json& file, const std::vector<const json*>& candidates) {
  svg::Plot plot{.title = "error against memory"};
  plot.x.label = "MiB from forward to backward", plot.y.label = "error of the gradients";
  svg::Curve frontier{.name = "frontier", .points = {}, .style = 0};
  svg::Curve alone{.name = "each alone", .points = {}, .style = 1};
  svg::Curve base{.name = "base", .points = {}, .style = 2};
  for (const json& point : array_in(file, "frontier"))
    if (const auto place = place_of(point); place && frontier.points.size() < 500)
      frontier.points.push_back(*place);
  // A gap after each point, so that no line connects the points.
  for (const json* candidate : candidates)
    if (const auto place = place_of(*candidate); place && alone.points.size() < 200)
      alone.points.insert(alone.points.end(), {*place, {svg::automatic, svg::automatic}});
  if (const auto place = place_of(object_in(file, "base"))) base.points.push_back(*place);
  for (svg::Curve* curve : {&frontier, &alone, &base})
    if (!curve->points.empty()) plot.curves.push_back(std::move(*curve));
  return plot.curves.empty() ? "" : figures({svg::draw(plot)});
}

/// The policies of a search among a menu's formats, one for each budget of bits.
std::string menu_of(const json& file) {
  html::Table table({"budget", "bits", defined("added", "added"), "predicted", "changes loss",
                     "predicted, ±", "file"},
                    1);
  for (const json& point : array_in(file, "points"))
    if (point.is_object() && table.rows() < 100)
      table.row({number_in(point, "budget") ? number_text(point, "budget") : "for all",
                 number_text(point, "bits"), number_text(point, "added"),
                 number_text(point, "predicted"), number_text(point, "loss_change"),
                 number_text(point, "predicted_loss_change"), short_text(point, "file", 80)});
  return table.text();
}

std::string search_of(const std::filesystem::path& path) {
  constexpr std::size_t most_rows = 100;
  const json file = read_json("report", path);
  if (file.contains("points")) return menu_of(file);
  std::vector<const json*> candidates;
  for (const json& candidate : array_in(file, "candidates"))
    if (candidate.is_object()) candidates.push_back(&candidate);
  std::ranges::stable_sort(candidates, [](const json* a, const json* b) {
    return number_in(*a, "error").value_or(HUGE_VAL) < number_in(*b, "error").value_or(HUGE_VAL);
  });
  const json& chosen = array_in(file, "chosen");
  html::Table table({"candidate", defined("error", "sensitivity"), defined("added", "added"),
                     "loss error", "ms", "MiB", "bits", ""});
  for (const json* candidate : candidates) {
    if (table.rows() == most_rows) break;
    const std::string name = text_in(*candidate, "name");
    const bool is_chosen = !name.empty() && std::ranges::find(chosen, json(name)) != chosen.end();
    const auto bytes = number_in(*candidate, "bytes");
    table.row({escaped(html::shortened(name.empty() ? "without a name" : name, 80)),
               number_text(*candidate, "error"), number_text(*candidate, "added"),
               number_text(*candidate, "loss_error"), number_text(*candidate, "milliseconds"),
               bytes ? number(*bytes / 1048576, 4) : "-", number_text(*candidate, "bits"),
               is_chosen ? "chosen" : short_text(*candidate, "refused", 100)});
  }
  std::string text = frontier_plot(file, candidates) + table.text();
  if (candidates.size() > most_rows)
    text += paragraph("The " + std::to_string(most_rows) + " least harmful of " +
                      std::to_string(candidates.size()) + " candidates.");
  return text;
}

struct Definition {
  const char *anchor, *name, *text;
};
constexpr Definition definitions[] = {
    {"final-loss", "final loss",
     "The validation loss, if the workload has validation data; otherwise the mean loss of the "
     "last tenth of the steps. Then the mean over the seeds that all policies have, or over a "
     "policy's own if there is no such seed."},
    {"paired", "against a policy",
     "(loss - its loss) / its loss for each seed that both have. The mean over the seeds and its "
     "95 % interval, mean ± t s / √n with Student's t."},
    {"ms", "ms per step",
     "The median over the steps, from the batch to the update, without validation; then the "
     "median over the seeds."},
    {"at-rest", "at rest",
     "Parameters and the tensors stored with them: masters, remainders, compensation."},
    {"underflow", "underflow", "The share of the nonzero numbers that become 0."},
    {"saturation", "saturation",
     "The share of all numbers that exceed the grid's largest number times its scale."},
    {"sqnr", "SQNR",
     "10 log10(Σ x² / Σ e²) in dB; e is the error of the rounding. Large values dominate the "
     "sums and hide small values that become 0: compare it with underflow."},
    {"error-parts", "scale, dead zone, grid, saturation",
     "Parts of Σ e² that add up to it. With a = Σ x y / Σ x², scale is (a - 1)² Σ x²: what one "
     "factor for all of y would remove. The rest, Σ (y - a x)², is divided into numbers that "
     "became 0 (dead zone), numbers beyond the grid's largest (saturation), and all others "
     "(grid)."},
    {"norm-to-noise", "norm / noise",
     "√(Σ x² / Σ e²) of a gradient. Training stalls when it is below √3 (arXiv 2505.19115)."},
    {"oscillation", "flipped, and back",
     "Over three sampled steps in a row: the share of a weight's numbers that moved to another "
     "point of the grid from the second to the third, and the share that moved away and back "
     "(arXiv 2502.20853)."},
    {"rms", "log2 of the root mean square",
     "log2 √(Σ x² / n) before the rounding, loss scale included."},
    {"sufficient", "scale for a format",
     "The smallest loss scale or tensor scale that is enough: the power of two that lifts all but "
     "a thousandth of the numbers above those that the format rounds to 0, limited by the room "
     "below its largest number."},
    {"lost", "lost",
     "The share of updates u, u ≠ 0, that leave the weight unchanged. u: the optimizer's update "
     "in f32."},
    {"descent", "effective descent", "Σ (w' - w) u / Σ u u: 1 if steps apply whole updates."},
    {"ratio", "update ratio", "Norm of u over norm of w."},
    {"ulp", "log2(|u| / ulp(w))",
     "ulp(w): the spacing of the parameter's dtype at w. Below -1, rounding to nearest loses the "
     "update."},
    {"rounding", "rounding",
     "The relative error √(Σ e² / Σ x²) of a rounding, divided by the prediction of its format, "
     "0.2123 · 2^(1-p) for significands of p bits."},
    {"local", "local",
     "The relative difference from the same operation in f32 on operands that were not rounded."},
    {"amplification", "amplification",
     "local divided by the root of the sum of squares of the operands' errors and the result's "
     "own rounding. About 1 for products of independent operands."},
    {"twin", "twin",
     "The relative difference from the reference's run: all errors up to this tensor."},
    {"sensitivity", "error of the gradients",
     "For a candidate alone on top of the base policy, over a few batches: the norm of the "
     "difference from the reference's gradients, divided by their norm."},
    {"added", "added", "The same difference, but from the gradients of the base policy."}};

constexpr std::pair<const char*, const char*> written_by[] = {
    {"summary.json, resolved.json, metrics.jsonl, policy.json",
     "halftone-lab run POLICY... --workload W --steps N --seeds 0,1,2 --out runs"},
    {"probe.jsonl", "the same with --probe 50"},
    {"compare.json",
     "halftone-lab compare POLICY --reference fp32 --workload W --json runs/RUN/compare.json"},
    {"search.json", "halftone-lab search POLICY --space ops --objective bytes --workload W"},
    {"this page", "halftone-lab report runs/* -o report.html"},
    {"all numbers for pandas", "halftone-lab table runs/* --csv"}};

}  // namespace

std::string comparison_panel(const ReportData& data) {
  if (data.comparisons.empty())
    return absent("No comparison is here",
                  "halftone-lab compare POLICY --reference fp32 --json runs/RUN/compare.json");
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(data.comparisons.size(), 8); ++i)
    text += comparison_of(data.comparisons[i]);
  return text;
}

std::string search_panel(const ReportData& data) {
  if (data.searches.empty())
    return absent("No search is here", "halftone-lab search POLICY --space ops --objective bytes");
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(data.searches.size(), 4); ++i)
    text += search_of(data.searches[i]);
  return text;
}

std::string strategy_panel(const ReportData& data) {
  std::string text;
  for (const std::filesystem::path& path : data.strategies)
    text += strategy_sections(read_json_document("report", path));
  return text.empty() ? absent("Figures of whole trainings under several strategies",
                               "compare_strategies --json comparison.json")
                      : text;
}

std::string definition_panel(const ReportData& data) {
  std::string list;
  for (const Definition& d : definitions)
    list += html::element("dt", "id=\"def-" + std::string(d.anchor) + "\"", d.name) +
            html::element("dd", "", d.text) + "\n";
  html::Table table({"file", "what makes it"}, 2);
  for (const auto& [file, command] : written_by)
    table.row({file, html::element("code", "", escaped(command))});
  std::string text = html::element("dl", "", "\n" + list) + table.text();
  if (!data.notes.empty()) {
    std::string notes;
    for (std::size_t i = 0; i < std::min<std::size_t>(data.notes.size(), 50); ++i)
      notes += html::element("li", "", escaped(html::shortened(data.notes[i], 300))) + "\n";
    text +=
        html::element("h3", "id=\"notes\"", "What was left out") + html::element("ul", "", notes);
  }
  return text;
}

// Panels 8 to 10: exponents and the ranges of formats, updates, scales.

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
        "halftone-lab run amp-fp16 amp/policies/te_delayed_hybrid.json --probe 50 --out runs");
  return text + paragraph(
                    "Which tensor overflowed in a skipped step: halftone-lab explain POLICY "
                    "--workload W. The ideal scale is the one that fits the tensor of "
                    "that step.");
}

// Panels 5 and 7: the effect of its treatment on the tensors of each site.

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
