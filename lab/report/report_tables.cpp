// The sentences and tables of the report.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <sstream>

#include <halftone/core/formats/number_format.h>
#include <halftone/lab/draw.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/report/page.h>
#include <halftone/lab/report/report.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

using html::escaped;
using nlohmann::json;

namespace {

/// Returns the name of a number as a link to its definition.
std::string defined(std::string_view shown, std::string_view anchor) {
  return html::element("a", "href=\"#def-" + std::string(anchor) + "\"", escaped(shown));
}

/// Returns the mark of a policy in figures, and its name.
std::string name_of(const ReportGroup& group) { return html::series(group.label, group.style); }

/// Returns about three digits, without an exponent: "0.52", "5.30", "37.1", "1240".
std::string three(double x) { return fixed(x, x < 10 ? 2 : x < 100 ? 1 : 0); }

std::string joined(const std::vector<std::string>& texts, const char* between) {
  std::string all;
  for (const std::string& text : texts) all += (&text == &texts[0] ? "" : between) + text;
  return all;
}

std::string percent_text(double middle, double half) {
  return interval_text(100 * middle, 100 * half) + " %";
}

}  // namespace

// --- what the runs say

namespace {

/// Names the policies with the lowest loss: the first, and those whose interval does not exclude
/// it.
std::string winner(const Groups& groups) {
  std::vector<std::pair<double, const ReportGroup*>> all;
  for (const ReportGroup* group : groups)
    if (const auto losses = group->numbers_beside(groups, "loss"); !losses.empty())
      all.emplace_back(interval_of(losses).mean, group);
  if (all.size() < 2) return "";
  std::ranges::stable_sort(all, {}, [](const auto& entry) { return entry.first; });
  const ReportGroup& best = *all.front().second;
  std::vector<std::string> equals;
  for (const auto& [loss, group] : std::span(all).subspan(1)) {
    const auto paired = group->paired(best, "loss");
    const Interval d = interval_of(paired);
    if (paired.size() > 1 && d.mean > d.half) continue;
    equals.push_back(html::brief(group->label, 60));
  }
  const std::string name = "<b>" + html::brief(best.label, 60) + "</b>",
                    lowest = " has the lowest " + defined("final loss", "final-loss");
  const std::string sentence =
      equals.empty() ? name + lowest + ", and every other policy is worse."
                     : "Undecided: " + name + lowest + ", but these runs cannot tell it from " +
                           joined(equals, " or ") +
                           (equals.size() + 1 < all.size() ? "; the others are worse." : ".");
  return html::element("p", "class=\"lead\"", sentence) + "\n";
}

/// Says in which role a policy's roundings lose most, and names a tensor that differs from the others.
std::string loses_most(const ReportGroup& group) {
  std::map<policy::Role, std::vector<std::pair<double, std::string>>> all;  // SQNR, site
  double most = 5e-4;
  std::string zeros;
  for (const auto& [place, tensor] : group.tensors) {
    if (tensor.quantizer.empty()) continue;
    if (const double sqnr = tensor.survey.sqnr(); std::isfinite(sqnr))
      all[place.second].emplace_back(sqnr, place.first);
    if (const double share = tensor.survey.underflow(); share > most)
      most = share, zeros = place.first + " " + std::string(policy::name(place.second));
  }
  for (auto& entry : all) std::ranges::sort(entry.second);
  const auto worst = std::ranges::min_element(all, {}, [](auto& e) { return e.second.front(); });
  if (worst == all.end()) return "";
  const auto& [role, noise] = *worst;
  if (noise.front().first > 50)  // as bf16
    return " Every " + defined("SQNR", "sqnr") + " is at least " + fixed(noise.front().first, 1) +
           " dB.";
  std::string text = " It errs most in " + defined(policy::name(role), "roles") + ", with an " +
                     defined("SQNR", "sqnr") + " of " + fixed(noise.front().first, 1);
  if (noise.size() > 1) text += " to " + fixed(noise.back().first, 1);
  text += " dB";
  if (noise.size() > 1 && noise[1].first > noise[0].first + 1)
    text += " (least in " + html::brief(noise[0].second, 60) + ")";
  if (!zeros.empty())
    text += "; up to " + fixed(100 * most, 1) + " % become 0, in " + html::brief(zeros, 80);
  return text + ".";
}

/// Returns the differences of a few seeds: one far from the others explains a wide interval.
std::string by_seed(const std::vector<double>& paired) {
  std::string text;
  for (const double d : paired) text += (text.empty() ? "" : ", ") + fixed(100 * d, 1);
  return paired.size() < 2 || paired.size() > 6 ? "" : " By seed: " + text + " %.";
}

}  // namespace

std::string verdicts(const ReportData& data) {
  std::string text;
  const auto lists = data.by_workload();
  for (const auto& groups : lists) {
    const ReportGroup& base = *groups.front();
    std::string sentences;
    for (const ReportGroup* group : groups)
      if (!group->is_file && sentences.size() < 20'000)
        sentences += html::element(
                         "li", "",
                         name_of(*group) + " " +
                             (group == &base
                                  ? "is the reference."
                                  : escaped(verdict_text(group->paired(base, "loss"), base.label)) +
                                        by_seed(group->paired(base, "loss"))) +
                             loses_most(*group)) +
                     "\n";
    if (sentences.empty()) continue;
    if (lists.size() > 1) text += html::element("h2", "", html::brief(base.workload, 60));
    text += winner(groups) + html::element("ul", "class=\"verdicts\"", "\n" + sentences) + "\n";
  }
  return text;
}

std::string policy_table(const ReportData& data) {
  std::string text;
  for (const auto& groups : data.by_workload()) {
    const ReportGroup& base = *groups.front();
    if (base.is_file) continue;
    std::vector<std::string> heads{"policy",
                                   defined("bits of weights, inputs, gradients", "bits"),
                                   defined("MiB here", "mib"),
                                   defined("ms/step here", "ms"),
                                   defined("final loss, 95 %", "final-loss"),
                                   defined("against " + html::shortened(base.label, 24), "paired")};
    const auto skipped_in = [](const ReportGroup* group) {
      const auto all = group->numbers("skipped_steps");
      return std::accumulate(all.begin(), all.end(), 0.0);
    };
    if (std::ranges::any_of(groups, skipped_in)) heads.push_back("skipped");
    html::Table table(heads);
    for (const ReportGroup* group : groups) {
      if (group->is_file) continue;
      const std::vector<double> losses = group->numbers_beside(groups, "loss"),
                                times = group->numbers("milliseconds_per_step"),
                                memory = group->memory(), paired = group->paired(base, "loss");
      std::vector<std::string> bits;
      for (const double b : group->bits()) bits.push_back(std::isnan(b) ? "-" : number(b, 2));
      if (bits[0] == bits[1] && bits[1] == bits[2]) bits.resize(1);
      const Interval loss = interval_of(losses), difference = interval_of(paired);
      std::vector<std::string> row{
          name_of(*group),
          joined(bits, ", "),
          memory.empty() ? "-" : three(std::accumulate(memory.begin(), memory.end(), 0.0)),
          times.empty() ? "-" : three(median(times)),
          losses.empty() ? "-" : interval_text(loss.mean, loss.half, false),
          group == &base || paired.empty() ? "" : percent_text(difference.mean, difference.half)};
      if (heads.size() > row.size()) row.push_back(number(skipped_in(group)));
      table.row(row);
    }
    text += table.text();
  }
  return text;
}

/// Facts of the runs: those that all share, and a column for each policy with the others.
std::string fact_tables(const ReportData& data) {
  std::map<std::string, std::vector<std::vector<std::string>>> facts;  // by policy and run
  std::vector<std::string> heads{"fact"};
  for (std::size_t g = 0; g < data.groups.size(); ++g) {
    heads.push_back(name_of(data.groups[g]));
    for (const ReportRun& run : data.groups[g].runs) {
      const auto add = [&](const std::string& name, const std::string& value) {
        auto& values = facts[name];
        values.resize(data.groups.size());
        values[g].push_back(value);
      };
      for (const auto& [name, value] : run.summary.texts) add(name, value);
      for (const auto& [name, value] : run.summary.numbers) add(name, number(value, 4));
    }
  }
  html::Table same({"the same in all runs", ""}, 2), different(heads, heads.size());
  for (const auto& fact : facts) {
    const auto& [name, values] = fact;
    if (name == "format" || name == "policy") continue;
    const auto are = [](const std::vector<std::string>& all, const std::string& value) {
      return std::ranges::count(all, value) == std::ssize(all);
    };
    std::vector<std::string> row{html::brief(name, 40)};
    for (const auto& all : values) {
      const bool one = !all.empty() && are(all, all[0]);
      row.push_back(html::brief(one ? all[0] : joined(all, "; "), 120));
    }
    const bool equal = std::ranges::all_of(values, [&](const auto& v) {
      return !v.empty() && !fact.second[0].empty() && are(v, fact.second[0][0]);
    });
    if (equal) same.row({row[0], row[1]});
    else different.row(row);
  }
  std::string text = different.text() + same.text();
  std::string notes;
  for (std::size_t i = 0; i < std::min<std::size_t>(data.notes.size(), 50); ++i)
    notes += html::element("li", "", html::brief(data.notes[i], 300)) + "\n";
  if (!notes.empty())
    text += html::element("h3", "", "What was left out") + html::element("ul", "", notes);
  return text;
}

// --- formats of sites

std::string short_format(const std::string& described) {
  std::string text = described.substr(0, described.find_first_of(", "));
  if (const auto at = described.find("blocks of "); at != described.npos) {
    const std::size_t from = at + 10;
    text += "/" + described.substr(from, described.find_first_of(", ", from) - from);
  } else if (described.find("scaled per tensor") != described.npos) text += "/tensor";
  return text;
}

namespace {

/// Returns the dtype of a site and the formats of its roles, with the whole descriptions as title.
/// A use in backward is left out if it has the format of its role.
std::string treatment_of(const RecordedSite& site) {
  std::vector<std::pair<std::string, std::string>> formats;  // format, roles
  std::map<std::string, std::string> known;
  std::string title;
  for (const auto& [role, quantizer] : site.roles) {
    const std::string format = short_format(quantizer);
    title += (title.empty() ? "" : "; ") + role + ": " + quantizer;
    known[role] = format;
    if (const auto of = known.find(role.substr(0, role.find('.')));
        of != known.end() && of->first != role && of->second == format)
      continue;
    const auto same =
        std::ranges::find(formats, format, &std::pair<std::string, std::string>::first);
    if (same != formats.end()) same->second += ", " + role;
    else formats.emplace_back(format, role);
  }
  std::string text =
      escaped(site.computes_in.empty() ? "-" : "in " + html::shortened(site.computes_in, 30));
  for (const auto& [format, roles] : formats)
    text += "<br/>" +
            (formats.size() > 1 || known.size() == 1 ? html::brief(roles, 60) + " " : "all ") +
            "<b>" + html::brief(format, 40) + "</b>";
  return html::element("span", "title=\"" + html::brief(title, 600) + "\"", text);
}

}  // namespace

std::string format_table(const ReportData& data) {
  constexpr std::size_t most_rows = 100, most_policies = 8;
  std::string text;
  for (const auto& all : data.by_workload()) {
    std::vector<std::string> heads{"sites"}, order;
    std::map<std::string, std::vector<std::string>> cells;
    Groups groups;
    for (const ReportGroup* group : all)
      if (!group->resolved.empty() && groups.size() < most_policies) groups.push_back(group);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      heads.push_back(name_of(*groups[g]));
      for (const RecordedSite& site : groups[g]->resolved) {
        auto& row = cells[site.site];
        if (row.empty()) order.push_back(site.site), row.resize(groups.size(), "not there");
        row[g] = treatment_of(site);
      }
    }
    std::vector<std::vector<std::string>> names;  // of sites that share a line
    std::map<std::pair<std::string, std::vector<std::string>>, std::size_t> known;
    for (const std::string& site : order) {
      const auto [at, added] =
          known.try_emplace({without_numbers(site), cells[site]}, names.size());
      if (added) names.emplace_back();
      names[at->second].push_back(site);
    }
    html::Table table(heads, heads.size());
    for (const auto& sites : names) {
      if (table.rows() == most_rows) break;
      std::vector<std::string> row{html::brief(sites.front(), 70)};
      if (sites.size() > 1) row[0] += " (" + std::to_string(sites.size()) + " like this)";
      for (const std::string& cell : cells[sites.front()])
        row.push_back((cell == cells[sites.front()].front() ? "" : "≠ ") + cell);
      table.row(row);
    }
    text += table.text();
    if (names.size() > most_rows)
      text += html::paragraph("The first " + std::to_string(most_rows) + " of " +
                              std::to_string(names.size()) +
                              " kinds of sites; all of them: halftone-lab show POLICY.");
  }
  return text;
}

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

// --- numbers of figures

std::string error_table(const ReportData& data) {
  constexpr std::size_t most_lines = 100;
  html::Table table({"policy, role, format", "error, %", defined("scale", "error-parts"),
                     defined("dead zone", "error-parts"), defined("grid", "error-parts"),
                     defined("beyond", "error-parts"),
                     defined("least norm / noise", "norm-to-noise"),
                     defined("flipped", "oscillation"), defined("and back", "oscillation")});
  for (const ReportGroup& group : data.groups) {
    std::map<std::pair<policy::Role, std::string>, RoleErrors> all;
    for (const auto& [place, tensor] : group.tensors)
      all[{place.second, short_format(tensor.quantizer)}].add(place.second, tensor);
    for (const auto& [key, e] : all) {
      if (e.tensors == 0 || table.rows() == most_lines) continue;
      std::vector<std::string> row{name_of(group) + "<br/>" + std::string(policy::name(key.first)) +
                                       " " + html::brief(key.second, 40),
                                   fixed(100 * e.size(), 2)};
      for (const double part : {e.parts.scale, e.parts.dead_zone, e.parts.grid, e.parts.saturation})
        row.push_back(e.whole > 0 ? fixed(100 * part / e.whole, 1) : "-");
      const bool flips = e.flips.count > 0;
      row.push_back(std::isfinite(e.least) ? number(e.least, 3) : "");
      if (e.below > 0) row.back() += ", " + std::to_string(e.below) + " below √3";
      row.push_back(flips ? fixed(100 * e.flips.flipped_share(), 2) : "");
      row.push_back(flips ? fixed(100 * e.flips.oscillation(), 2) : "");
      table.row(row);
    }
  }
  return table.text();
}

std::string update_table(const ReportData& data) {
  html::Table table({"policy", defined("lost, %", "lost"), "in forward's dtype, %",
                     defined("effective descent", "descent"), "in forward's dtype",
                     defined("update ratio", "ratio")});
  for (const ReportGroup& g : data.groups)
    if (!g.updates.empty())
      table.row({name_of(g), number(100 * g.stored.lost_share(), 3),
                 number(100 * g.seen.lost_share(), 3), number(g.stored.effective_descent(), 3),
                 number(g.seen.effective_descent(), 3), number(g.stored.update_ratio(), 2)});
  return table.text();
}

// --- comparisons, searches, definitions

namespace {

/// Returns the entries of an object as cells: numbers with three digits, texts in short.
std::vector<std::string> cells_of(const json& object, std::initializer_list<const char*> keys) {
  std::vector<std::string> cells;
  for (const char* key : keys) {
    const auto value = number_in(object, key);
    const std::string text = text_in(object, key);
    cells.push_back(value ? number(*value, 3) : text.empty() ? "-" : html::brief(text, 90));
  }
  return cells;
}

std::string comparison_of(const std::filesystem::path& path) {
  constexpr std::size_t most_rows = 150;
  const json file = read_json("report", path);
  html::Table table({"site", "role", defined("rounding", "rounding"), defined("local", "local"),
                     defined("amplification", "amplification"), defined("twin", "twin"), "why"},
                    2);
  const auto first = count_in(file, "first");
  int64_t number_of_row = 0;
  for (const json& row : array_in(file, "rows")) {
    const bool is_first = first == number_of_row++;
    // A tensor that was not rounded, with no rounded tensor before it, carries no information.
    if (!number_in(row, "rounding") && !(number_in(row, "local").value_or(0) > 0)) continue;
    if (table.rows() >= most_rows && !is_first) continue;
    auto cells =
        cells_of(row, {"site", "role", "rounding", "local", "amplification", "twin", "reason"});
    if (is_first) cells[0] = "<b>→ " + cells[0] + "</b>", cells[6] = "the first: " + cells[6];
    table.row(cells);
  }
  const auto words =
      cells_of(file, {"policy", "reference", "workload", "candidate_loss", "reference_loss"});
  return html::element("p", "",
                       words[0] + " against " + words[1] + ", one batch of " + words[2] +
                           ": loss " + words[3] + ", of the reference " + words[4] + "." +
                           (first ? ""
                                  : " Nothing deviates: every rounding is as its format predicts, "
                                    "and no operation amplifies.")) +
         table.text();
}

/// The point of an object that has bytes and an error, as a curve's.
void add_place(svg::Curve& curve, const json& object) {
  const auto bytes = number_in(object, "bytes"), error = number_in(object, "error");
  if (bytes && error && curve.points.size() < 500)
    curve.points.push_back({*bytes / 1048576, *error});
}

std::string search_of(const std::filesystem::path& path) {
  constexpr std::size_t most_rows = 100;
  const json file = read_json("report", path);
  if (file.contains("points")) {  // the policies of a menu, one for each budget of bits
    html::Table menu({"budget", "bits", defined("added", "added"), "predicted", "changes loss",
                      "predicted, ±", "file"});
    for (const json& point : array_in(file, "points"))
      if (point.is_object() && menu.rows() < most_rows) {
        auto cells = cells_of(point, {"budget", "bits", "added", "predicted", "loss_change",
                                      "predicted_loss_change", "file"});
        if (cells[0] == "-") cells[0] = "for all";
        menu.row(cells);
      }
    return menu.text();
  }
  std::vector<const json*> candidates;
  for (const json& candidate : array_in(file, "candidates"))
    if (candidate.is_object()) candidates.push_back(&candidate);
  std::ranges::stable_sort(candidates, {}, [](const json* candidate) {
    return number_in(*candidate, "error").value_or(HUGE_VAL);
  });
  const json& chosen = array_in(file, "chosen");
  html::Table table({"candidate", defined("error", "sensitivity"), defined("added", "added"),
                     "loss error", "ms", "bits", "MiB", ""});
  svg::Plot plot{.title = "Error of the gradients against MiB from forward to backward"};
  plot.x.label = "MiB", plot.y.label = "error";
  svg::Curve frontier{"frontier", {}, 0}, alone{"each alone", {}, 1}, base{"base", {}, 2};
  for (const json& point : array_in(file, "frontier")) add_place(frontier, point);
  for (const json* candidate : candidates) {
    add_place(alone, *candidate);
    alone.points.push_back({svg::automatic, svg::automatic});  // no line joins the points
    if (table.rows() == most_rows) continue;
    const bool is_chosen =
        std::ranges::find(chosen, json(text_in(*candidate, "name"))) != chosen.end();
    auto cells = cells_of(*candidate, {"name", "error", "added", "loss_error", "milliseconds",
                                       "bits", "bytes", "refused"});
    if (const auto bytes = number_in(*candidate, "bytes")) cells[6] = number(*bytes / 1048576, 4);
    if (is_chosen) cells[7] = "chosen";
    table.row(cells);
  }
  add_place(base, object_in(file, "base"));
  for (svg::Curve* curve : {&frontier, &alone, &base})
    if (!curve->points.empty()) plot.curves.push_back(std::move(*curve));
  return (plot.curves.empty() ? "" : html::figures({plot})) + table.text();
}

/// A line each: anchor|name|text.
constexpr std::string_view all_definitions =
    R"(roles|roles of tensors|Operands of an operation are its input and weight; the products of backward read them again (input.backward, weight.backward). grad_output is the gradient of its result: grad_output.weight as operand of the weights' gradient, grad_output.input as operand of the input's.
site|site|An operation in the model: the path of its module, its name, and which call of that name it is in the module.
final-loss|final loss|The loss on validation data. A workload without such data has the mean of the last tenth of the steps instead. The table shows the mean over the seeds that all policies share (without such a seed: over the policy's own), and its 95 % interval.
paired|against a policy|(loss - its loss) / its loss for each seed that both have. The mean over the seeds and its 95 % interval, mean ± t s / √n with Student's t.
bits|bits|Mean bits of the weights, inputs and gradients of results that products multiply, scales of blocks included; one number if they are equal.
mib|MiB here|The bytes of all uses but the data set at the moment of their highest total, in the first run of the policy. Emulated formats need bytes, and time, that they would not need on hardware that has them.
ms|ms/step here|The median over the steps, from the batch to the update, without validation; then the median over the seeds.
at-rest|at rest|Parameters and the tensors stored with them: masters, remainders, compensation.
underflow|underflow|The share of the nonzero numbers that become 0.
saturation|saturation|The share of all numbers that exceed the grid's largest number times its scale.
sqnr|SQNR|10 log10(Σ x² / Σ e²) in dB; e is the error of the rounding, so a larger number is a smaller error. Large values dominate the sums and hide small values that become 0: compare it with underflow.
error-parts|scale, dead zone, grid, beyond|Parts of Σ e² that add up to it. With a = Σ x y / Σ x², scale is (a - 1)² Σ x²: what one factor for all of y would remove. The rest, Σ (y - a x)², is divided into numbers that became 0 (dead zone), numbers beyond the grid's largest (beyond), and all others (grid).
norm-to-noise|norm / noise|√(Σ x² / Σ e²) of a gradient. arXiv 2505.19115 sees training stall below √3.
oscillation|flipped, and back|Over three sampled steps in a row: the share of a weight's numbers that moved to another point of the grid from the second to the third, and the share that moved away and back (arXiv 2502.20853).
rms|log2 of the root mean square|log2 √(Σ x² / n) before the rounding, loss scale included.
sufficient|scale for a format|The smallest loss scale or tensor scale that is enough: the power of two that lifts all but a thousandth of the numbers above those that the format rounds to 0, limited by the room below its largest number.
lost|lost|The share of updates u, u ≠ 0, that leave the weight unchanged. u: the optimizer's update in f32.
descent|effective descent|Σ (w' - w) u / Σ u u: 1 if steps apply whole updates.
ratio|update ratio|Norm of u over norm of w.
ulp|log2(abs(u) / ulp(w))|ulp(w): the spacing of the parameter's dtype at w. Below -1, rounding to nearest loses the update.
rounding|rounding|The relative error √(Σ e² / Σ x²) of a rounding, divided by the prediction of its format, 0.2123 · 2^(1-p) for significands of p bits.
local|local|The relative difference from the same operation in f32 on operands that were not rounded.
amplification|amplification|local divided by the root of the sum of squares of the operands' errors and the result's own rounding. About 1 for products of independent operands.
twin|twin|The relative difference from the reference's run: all errors up to this tensor.
sensitivity|error of the gradients|For a candidate alone on top of the base policy, over a few batches: the norm of the difference from the reference's gradients, divided by their norm.
added|added|The same difference, but from the gradients of the base policy.)";

}  // namespace

std::string comparison_tables(const ReportData& data) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(data.comparisons.size(), 8); ++i)
    text += comparison_of(data.comparisons[i]);
  return text;
}

std::string search_tables(const ReportData& data) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(data.searches.size(), 4); ++i)
    text += search_of(data.searches[i]);
  return text;
}

std::string definitions(const ReportData&) {
  std::string list;
  std::istringstream lines{std::string(all_definitions)};
  for (std::string anchor, name, text; std::getline(lines, anchor, '|');) {
    std::getline(lines, name, '|'), std::getline(lines, text);
    list += html::element("dt", "id=\"def-" + anchor + "\"", name) +
            html::element("dd", "", escaped(text)) + "\n";
  }
  return html::element("dl", "", "\n" + list);
}

}  // namespace halftone::lab
