// How pages look and what their script does: two schemes, narrow and wide windows, paper.
#include <halftone/lab/report/page.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include <halftone/lab/draw.h>
#include <halftone/lab/table.h>

namespace halftone::lab::html {

namespace {

constexpr const char* page_styles = R"(*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:94rem;font:16px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--ground);overflow-wrap:anywhere}
h1{font-size:1.4rem;line-height:1.25;margin:.25rem 0} h2{font-size:1.15rem;margin:1rem 0 .25rem} h3{font-size:1rem;margin:1rem 0 .5rem}
p,dl{max-width:48rem;margin:.5rem 0}
ul{max-width:60rem;margin:.25rem 0;padding-left:1.2rem}
a{color:inherit;text-decoration-color:var(--faint)} .lead{font-size:1.1rem} code{font:.875em ui-monospace,monospace}
details{border-top:1px solid var(--line)} summary{font-weight:600;padding:.45rem 0;cursor:pointer}
.wide{overflow-x:auto;max-width:100%;margin:.75rem 0}
.wide,figure.broad{background:linear-gradient(90deg,var(--ground) 60%,transparent) 0 0/2rem 100% no-repeat local,linear-gradient(-90deg,var(--ground) 60%,transparent) 100% 0/2rem 100% no-repeat local,linear-gradient(90deg,var(--faint),transparent) 0 0/.7rem 100% no-repeat,linear-gradient(-90deg,var(--faint),transparent) 100% 0/.7rem 100% no-repeat}
table{border-collapse:collapse;overflow-wrap:normal;font-size:.875rem;line-height:1.35;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .6rem;text-align:right;vertical-align:top;font-weight:400}
td{white-space:nowrap} th.t,td.t{text-align:left;white-space:normal;overflow-wrap:break-word;max-width:24rem}
thead th{font-weight:600;border-bottom:1px solid var(--faint);vertical-align:bottom}
tbody tr+tr>*{border-top:1px solid var(--line)}
td b{font-weight:600} [data-series].name{font-weight:600;white-space:nowrap}
.name svg{margin-right:.3rem}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,27rem),1fr));gap:1rem;align-items:start;margin:.75rem 0}
figure{margin:0;min-width:0;max-width:40rem}
figure.broad{grid-column:1/-1;max-width:none;overflow-x:auto}
figure svg{display:block;width:100%;height:auto;min-width:27rem}
figure.broad svg{width:auto;max-width:none}
.plot path,.plot rect{print-color-adjust:exact;-webkit-print-color-adjust:exact}
.dim{opacity:.13} #tip{position:fixed;display:none;max-width:24rem;padding:.2rem .5rem;font-size:.875rem;background:var(--ink);color:var(--ground);pointer-events:none;z-index:1}
dt{font-weight:600;margin-top:.6rem} dd{margin:0 0 0 1rem}
@media (max-width:40rem){
body{padding:.6rem} table{font-size:.75rem} th,td{padding:.2rem .3rem}
th.t,td.t{max-width:9rem} td{white-space:normal} figure svg{min-width:0}
}
@media print{
body{max-width:none;padding:0;font-size:11px} table{font-size:9px}
th,td,th.t,td.t{white-space:normal;padding:.1rem .3rem}
.wide{overflow:visible} figure,tr{break-inside:avoid}
}
)";

/// The pointer shows the value of the mark below it, and a click on a policy highlights it in every
/// figure until the next click. Without scripts, browsers show the marks' titles after a while.
constexpr const char* script = R"(
const tip = document.body.appendChild(document.createElement('div'));
tip.id = 'tip';
for (const title of document.querySelectorAll('.plot path > title')) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
document.addEventListener('pointermove', event => {
  const mark = event.target.closest('[data-tip]');
  tip.style.display = mark ? 'block' : 'none';
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  tip.style.left = Math.max(0, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8)) + 'px';
  tip.style.top = Math.max(0, event.clientY - tip.offsetHeight - 12) + 'px';
});
const policies = new Set([...document.querySelectorAll('.name')].map(name => name.dataset.series));
let chosen = '';
document.addEventListener('click', event => {
  const series = event.target.closest('[data-series]')?.dataset.series;
  if (!series) return;
  chosen = series === chosen ? '' : series;
  for (const svg of document.querySelectorAll('.plot')) {
    const marks = [...svg.querySelectorAll('[data-series]')];
    const has = marks.some(mark => mark.dataset.series === chosen);
    for (const mark of marks)
      mark.classList.toggle('dim', [has, mark.dataset.series !== chosen, policies.has(mark.dataset.series)].every(Boolean));
  }
});
const open = () => document.getElementById(location.hash.slice(1))?.closest('details')?.setAttribute('open', '');
addEventListener('hashchange', open);
open();
)";

}  // namespace

std::string paragraph(std::string_view text) { return element("p", "", escaped(text)) + "\n"; }

std::string series(std::string_view name, int style) {
  std::string sample = svg::svg_of(svg::sample_of(style), svg::Place::page);
  std::erase(sample, '\n');
  return element("span", "class=\"name\" data-series=\"" + escaped(name) + "\"",
                 sample + brief(name, 60));
}

std::string figures(const std::vector<svg::Picture>& pictures) {
  std::string text;
  for (const svg::Picture& picture : pictures) {
    const svg::Drawing drawing = svg::drawing_of(picture);
    text += element("figure", drawing.width > 520 ? "class=\"broad\"" : "",
                    "\n" + svg::svg_of(drawing, svg::Place::page)) +
            "\n";
  }
  return text.empty() ? "" : element("div", "class=\"figures\"", "\n" + text) + "\n";
}

std::string document(std::string_view title, std::string_view body) {
  return "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
         "<meta name=\"color-scheme\" content=\"light dark\"/>\n" +
         element("title", "", escaped(title)) + "\n" +
         element("style", "", "\n" + svg::styles() + page_styles) + "\n</head>\n" +
         element("body", "", "\n" + std::string(body) + element("script", "", script)) +
         "\n</html>\n";
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

/// Returns the strategy with which the others are compared: fp32, or the first.
const json& base_of(const json& strategies) {
  const auto fp32 = std::ranges::find_if(
      strategies, [](const json& s) { return text_in(s, "strategy") == "fp32"; });
  return fp32 == strategies.end() ? strategies.front() : *fp32;
}

/// Returns the MiB of each of memory_parts() at the peak.
std::vector<double> memory_of(const json& strategy) {
  std::vector<double> mib;
  for (const MemoryPart& part : memory_parts()) {
    mib.push_back(0);
    for (const std::string_view use : part.uses)
      mib.back() +=
          number_in(object_in(strategy, "at_peak"), std::string(use).c_str()).value_or(0) /
          (1 << 20);
  }
  return mib;
}
double peak_of(const json& strategy) {
  const std::vector<double> mib = memory_of(strategy);
  return std::accumulate(mib.begin(), mib.end(), 0.0);
}

std::string figure_table(const json& strategies) {
  html::Table table({"strategy", "test accuracy, %", "ms per step",
                     "speed-up over " + html::escaped(name_of(base_of(strategies))), "peak, MiB",
                     "at rest", "skipped", "loss"});
  const auto base = number_in(base_of(strategies), "ms");
  int style = 0;
  for (const json& s : strategies) {
    const auto ms = number_in(s, "ms");
    table.row({html::series(name_of(s), style++), figure(s, "test_accuracy", 0.01, 2),
               figure(s, "ms", 1, 2), ms && base && *ms > 0 ? fixed(*base / *ms, 2) + "x" : "-",
               fixed(peak_of(s), 2), figure(s, "parameter_ratio", 1, 2, "x"),
               figure(s, "skipped_steps", 1, 0), figure(s, "final_loss", 1, 4)});
  }
  return table.text();
}

/// The bytes of each use at the moment of the highest total.
std::vector<svg::Picture> memory_drawing(const json& strategies) {
  svg::Bars bars{.title = {}, .unit = "MiB", .parts = {}, .labels = {}, .bars = {}};
  for (const MemoryPart& part : memory_parts())
    bars.parts.push_back(part.name), bars.labels.push_back(part.label);
  const json* least = &strategies.front();
  for (const json& s : strategies) {
    bars.bars.push_back({name_of(s), memory_of(s)});
    if (peak_of(s) < peak_of(*least)) least = &s;
  }
  const double base = peak_of(base_of(strategies));
  if (base == 0) return {};
  bars.title = name_of(*least) +
               " needs the least memory at the peak: " + fixed(peak_of(*least), 1) + " MiB, " +
               fixed(100 * peak_of(*least) / base, 0) + " % of " + name_of(base_of(strategies)) +
               "'s";
  return {bars};
}

/// The smoothed losses of each strategy in percent of the base's, and their largest at the end.
std::vector<svg::Picture> loss_drawing(const json& strategies) {
  constexpr int reach = 5;
  const json& base = base_of(strategies);
  const auto smooth = [](const json& s) {
    std::vector<svg::Point> all, means;
    for (const json& point : array_in(s, "losses"))
      if (point.is_array() && point.size() == 2 && point[0].is_number() && point[1].is_number())
        all.push_back({point[0].get<double>(), point[1].get<double>()});
    for (int i = 0; i < int(all.size()); ++i) {
      const int own = std::min({reach, i, int(all.size()) - 1 - i});
      means.push_back({all[std::size_t(i)].x, 0});
      for (int k = i - own; k <= i + own; ++k)
        means.back().y += all[std::size_t(k)].y / (2 * own + 1);
    }
    return means;
  };
  svg::Plot plot{.title = {}};
  plot.x.label = "step", plot.y.label = "percent";
  plot.rules.push_back({"no difference", 0});
  const std::vector<svg::Point> theirs = smooth(base);
  double largest = 0;
  int style = 0;
  for (const json& s : strategies) {
    svg::Curve curve{.name = name_of(s), .points = smooth(s), .style = style++, .shapes = true};
    if (&s == &base || curve.points.empty() || curve.points.size() != theirs.size()) continue;
    for (std::size_t i = 0; i < theirs.size(); ++i)
      curve.points[i].y = 100 * (curve.points[i].y / theirs[i].y - 1);
    const std::size_t from = theirs.size() - theirs.size() / 10 - 1;
    for (std::size_t i = from; i < theirs.size(); ++i)
      largest = std::max(largest, std::abs(curve.points[i].y));
    plot.curves.push_back(std::move(curve));
  }
  if (plot.curves.empty()) return {};
  plot.title = "Training loss against " + name_of(base) + ": in the last tenth at most " +
               number(largest, 2) + " % apart";
  return {plot};
}

std::string cast_text(const json& cast) {
  std::string text = html::brief(text_in(cast, "runs_in"), most_letters);
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
  std::vector<svg::Picture> pictures = memory_drawing(strategies);
  std::ranges::move(loss_drawing(strategies), std::back_inserter(pictures));
  return setting(strategies.front()) + figure_table(strategies) + html::figures(pictures) +
         html::paragraph(
             "Peak: the bytes at the moment of their highest total, without the data set. "
             "At rest: bytes of parameters, masters, remainders and compensation, over "
             "those of f32 parameters. ms per step: the median. Losses are averaged over a tenth "
             "of "
             "the steps.") +
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
