// Strategies side by side: a table of figures, two drawings, and a table of casts.
#include <halftone/lab/report/report_strategies.h>

#include <algorithm>
#include <map>
#include <vector>

#include <halftone/lab/draw/html.h>
#include <halftone/lab/draw/svg.h>
#include <halftone/lab/json_input.h>
#include <halftone/lab/report/page.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

using nlohmann::json;

namespace {

constexpr std::size_t most_letters = 60;

std::string name_of(const json& strategy) {
  return html::shortened(text_in(strategy, "strategy"), most_letters);
}

std::string figure(const json& object, const char* key, double unit, int digits,
                   const char* after = "") {
  const auto value = number_in(object, key);
  return value ? fixed(*value / unit, digits) + after : "-";
}

std::string figure_table(const json& strategies) {
  html::Table table({"strategy", "test accuracy, %", "ms per step", "speed-up over fp32",
                     "peak, MiB", "parameters at rest", "steps skipped", "final loss"});
  const auto fp32 = std::ranges::find_if(
      strategies, [](const json& s) { return text_in(s, "strategy") == "fp32"; });
  for (const json& s : strategies) {
    const auto ms = number_in(s, "ms");
    const auto base = fp32 == strategies.end() ? std::nullopt : number_in(*fp32, "ms");
    table.row({html::escaped(name_of(s)), figure(s, "test_accuracy", 0.01, 2),
               figure(s, "ms", 1, 2), ms && base && *ms > 0 ? fixed(*base / *ms, 2) + "x" : "-",
               figure(s, "peak_bytes", 1 << 20, 2), figure(s, "parameter_ratio", 1, 2, "x"),
               figure(s, "skipped_steps", 1, 0), figure(s, "final_loss", 1, 4)});
  }
  return table.text();
}

/// The bytes of each use at the moment of the highest total.
std::string memory_drawing(const json& strategies) {
  svg::Bars bars{
      .title = "bytes at the peak, by use", .unit = "MiB", .parts = {}, .labels = {}, .bars = {}};
  for (const json& s : strategies)
    for (const auto& [use, bytes] : object_in(s, "at_peak").items())
      if (bytes.is_number() && bytes.get<double>() > 0 &&
          std::ranges::find(bars.parts, use) == bars.parts.end() && bars.parts.size() < 26)
        bars.parts.push_back(use);
  if (bars.parts.empty()) return "";
  for (std::size_t i = 0; i < bars.parts.size(); ++i)
    bars.labels.push_back(std::string(1, char('A' + i)));
  for (const json& s : strategies) {
    svg::Bar bar{name_of(s), {}};
    for (const std::string& use : bars.parts)
      bar.parts.push_back(number_in(object_in(s, "at_peak"), use.c_str()).value_or(0) / (1 << 20));
    bars.bars.push_back(std::move(bar));
  }
  for (std::string& use : bars.parts) use = html::shortened(use, most_letters);
  return svg::draw(bars);
}

/// Rows [last step, mean loss] of each strategy.
std::string loss_drawing(const json& strategies) {
  svg::Plot plot{.title = "training loss"};
  plot.x.label = "step", plot.y = {.label = "loss", .logarithmic = true};
  bool any = false;
  for (const json& s : strategies) {
    svg::Curve curve{.name = name_of(s), .points = {}, .style = int(plot.curves.size())};
    for (const json& point : array_in(s, "losses"))
      if (point.is_array() && point.size() == 2 && point[0].is_number() && point[1].is_number())
        curve.points.push_back({point[0].get<double>(), point[1].get<double>()});
    any = any || !curve.points.empty();
    plot.curves.push_back(std::move(curve));
  }
  return any ? svg::draw(plot) : "";
}

std::string cast_text(const json& cast) {
  std::string text = html::escaped(html::shortened(text_in(cast, "runs_in"), most_letters));
  const auto count = [&](const char* key) { return count_in(cast, key).value_or(0); };
  if (const int64_t casts = count("casts"); casts > 0) {
    const int64_t found = count("cache_hits");
    text += " (" + std::to_string(casts) + (casts == 1 ? " cast" : " casts");
    text += found > 0 ? ", " + std::to_string(found) + " from the cache)" : ")";
  }
  if (const int64_t n = count("to_zero"); n > 0) text += ", " + std::to_string(n) + " to 0";
  if (const int64_t n = count("to_infinity"); n > 0)
    text += ", " + std::to_string(n) + " to infinity";
  return text;
}

/// A row per operation: the dtype it ran in under each strategy, and the values that its casts
/// lost.
std::string cast_table(const json& strategies) {
  std::vector<std::string> heads{"operation"}, order;
  std::map<std::string, std::map<std::size_t, std::string>> cells;
  for (std::size_t i = 0; i < strategies.size(); ++i) {
    heads.push_back(html::escaped(name_of(strategies[i])));
    for (const json& cast : array_in(strategies[i], "casts")) {
      const std::string op = html::shortened(text_in(cast, "op"), most_letters);
      if (op.empty()) continue;
      if (!cells.contains(op)) order.push_back(op);
      std::string& cell = cells[op][i];
      cell += (cell.empty() ? "" : "<br/>") + cast_text(cast);
    }
  }
  html::Table table(heads, heads.size());
  for (const std::string& op : order) {
    std::vector<std::string> row{html::escaped(op)};
    for (std::size_t i = 0; i < strategies.size(); ++i)
      row.push_back(cells[op].contains(i) ? cells[op][i] : "as it comes");
    table.row(row);
  }
  return table.rows() > 0 ? table.text() : html::paragraph("No strategy here uses autocast.");
}

std::string section(const char* title, const std::string& content) {
  return html::element("h3", "", title) + "\n" + content;
}

std::string setting(const json& first) {
  const auto count = [&](const char* key) {
    return std::to_string(count_in(first, key).value_or(0));
  };
  const std::string epochs = count("epochs");
  return html::paragraph(
      html::shortened(text_in(first, "workload"), most_letters) + " on Fashion-MNIST, " + epochs +
      (epochs == "1" ? " epoch in batches of " : " epochs in batches of ") + count("batch") +
      " on " + html::shortened(text_in(first, "device"), most_letters) + ", " + count("threads") +
      " threads. All strategies start from the same weights and see the same batches.");
}

}  // namespace

bool is_strategy_list(const json& document) {
  return document.is_array() && !document.empty() &&
         std::ranges::all_of(document, [](const json& s) {
           return s.is_object() && !text_in(s, "strategy").empty() &&
                  number_in(s, "test_accuracy").has_value();
         });
}

std::string strategy_sections(const json& strategies) {
  return setting(strategies.front()) +
         section("Figures",
                 figure_table(strategies) +
                     html::paragraph("Parameters at rest: bytes of parameters, masters, remainders "
                                     "and compensation, over those of f32 parameters. ms per step: "
                                     "the median.")) +
         section("Memory and losses",
                 html::figures({memory_drawing(strategies), loss_drawing(strategies)})) +
         section("Casts of the first step",
                 html::paragraph("The dtype each operation of an autocast region ran in, how many "
                                 "of its inputs were cast, and how many of these casts came from "
                                 "the cache.") +
                     cast_table(strategies));
}

std::string strategy_page(const json& strategies) {
  return html::document("precision strategies compared",
                        html::element("h1", "", "Precision strategies compared") + "\n" +
                            strategy_sections(strategies));
}

}  // namespace halftone::lab
