// Panels 11 to 14: comparison, search, strategies, definitions.
#include <algorithm>
#include <cmath>

#include <halftone/lab/draw/html.h>
#include <halftone/lab/json_input.h>
#include <halftone/lab/report/report_page.h>
#include <halftone/lab/report/report_strategies.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

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

}  // namespace halftone::lab
