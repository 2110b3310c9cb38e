// How pages look: two schemes, narrow and wide windows, paper.
#include <halftone/lab/report/page.h>

#include <algorithm>
#include <map>
#include <vector>

#include <halftone/lab/draw.h>
#include <halftone/lab/table.h>

namespace halftone::lab::html {

namespace {

/// Nine backgrounds of heat maps, from nothing to bad, with the ink that is read on them.
std::string heat_colors() {
  constexpr const char* light[] = {"#fff",    "#fff1e3", "#fee0c4", "#fdc795", "#fba562",
                                   "#f07f35", "#d9601a", "#ab4310", "#7d2d0a"};
  constexpr const char* dark[] = {"#16191d", "#291f18", "#3d2818", "#573519", "#75451a",
                                  "#97571b", "#bb6c22", "#df8836", "#ffab5e"};
  std::string text, in_dark;
  for (int i = 0; i < 9; ++i) {
    const std::string name = ".h" + std::to_string(i);
    text += name + "{background:" + light[i] + ";color:" + (i < 6 ? "#1b1f24" : "#fff") + "}\n";
    in_dark += name + "{background:" + dark[i] + ";color:" + (i < 6 ? "#f2f3f5" : "#111") + "}\n";
  }
  return text + "@media screen and (prefers-color-scheme:dark){\n" + in_dark + "}\n";
}

std::string page_styles() {
  return R"(*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:100rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--ground);overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0}
h2{font-size:1.25rem;margin:2.5rem 0 .5rem;padding-top:.75rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.25rem 0 .5rem}
p,dl,ul{max-width:48rem}
a{color:var(--c0)}
nav{display:flex;flex-wrap:wrap;gap:.35rem 1.1rem}
code{font:.875em ui-monospace,monospace}
.absent,figcaption{color:var(--faint)}
.wide{overflow-x:auto;max-width:100%;margin:.75rem 0}
table{border-collapse:collapse;font-size:.875rem;line-height:1.35;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:right;vertical-align:top;white-space:nowrap;font-weight:400}
th.t,td.t{text-align:left}
th.t,td.t{white-space:normal;overflow-wrap:break-word;min-width:7rem;max-width:24rem}
thead th{font-weight:600;border-bottom:1px solid var(--faint);vertical-align:bottom}
tbody tr+tr>*{border-top:1px solid var(--line)}
caption{text-align:left;font-weight:600;padding:.25rem 0}
.heat th,.heat td{padding:.15rem .5rem}
.heat td,.figures rect,.figures path{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.maps{display:flex;flex-wrap:wrap;gap:0 2.5rem;align-items:flex-start}
.differs{border-left:3px solid var(--c1);padding-left:.4rem;display:inline-block}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,27rem),1fr));gap:1rem;align-items:start}
figure{margin:0;min-width:0;max-width:48rem}
figure svg{display:block;width:100%;height:auto}
dt{font-weight:600;margin-top:.6rem}
dd{margin:0 0 0 1rem}
@media (max-width:40rem){th.t,td.t{max-width:13rem}}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr));gap:.1rem 2rem;max-width:none;font-size:.875rem}
.facts div{display:grid;grid-template-columns:15rem 1fr;gap:1rem}
.facts dt{margin:0}
.facts dd{margin:0}
dl.letters{margin:.5rem 0}
dl.letters div{grid-template-columns:2rem 1fr}
@media (max-width:40rem){.facts div{grid-template-columns:10rem 1fr}}
@media print{
body{max-width:none;padding:0;font-size:11px}
table{font-size:9px}
th,td,th.t,td.t{white-space:normal;min-width:0;padding:.1rem .3rem}
.wide{overflow:visible}
nav{display:none}
figure,tr{break-inside:avoid}
h2,h3{break-after:avoid}
}
)" + heat_colors();
}

}  // namespace

std::string paragraph(std::string_view text) { return element("p", "", escaped(text)) + "\n"; }

std::string figures(const std::vector<std::string>& drawings) {
  std::string text;
  for (const std::string& drawing : drawings)
    if (!drawing.empty()) text += element("figure", "", "\n" + drawing) + "\n";
  return text.empty() ? "" : element("div", "class=\"figures\"", "\n" + text) + "\n";
}

std::string document(std::string_view title, std::string_view body) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
         "<meta name=\"color-scheme\" content=\"light dark\"/>\n" +
         element("title", "", escaped(title)) + "\n" +
         element("style", "", "\n" + svg::styles() + page_styles()) + "\n</head>\n" +
         element("body", "", "\n" + std::string(body)) + "\n</html>\n";
}

}  // namespace halftone::lab::html

// Strategies side by side: a table of figures, two drawings, and a table of casts.

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
