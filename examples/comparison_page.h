// The page of compare_strategies: memory, losses, accuracy, time, and what was cast.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <halftone/lab/draw/html.h>
#include <halftone/lab/report/page.h>
#include <halftone/lab/draw/svg.h>

#include "comparison.h"

inline std::string with_digits(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

/// What each use held when all together were at their peak.
inline std::string memory_drawing(const std::vector<Measured>& all) {
  using halftone::MemoryUse;
  halftone::lab::svg::Bars bars{
      .title = "bytes at the peak, by use", .unit = "MiB", .parts = {}, .labels = {}, .bars = {}};
  std::vector<MemoryUse> uses;
  for (int i = 0; i < halftone::memory_use_count; ++i) {
    const auto use = MemoryUse(i);
    const auto has = [&](const Measured& m) { return m.memory.at_peak[std::size_t(i)] > 0; };
    if (std::ranges::none_of(all, has)) continue;
    bars.labels.push_back(std::string(1, char('A' + uses.size())));
    bars.parts.emplace_back(halftone::name(use));
    uses.push_back(use);
  }
  for (const Measured& m : all) {
    bars.bars.push_back({m.strategy, {}});
    for (const MemoryUse use : uses)
      bars.bars.back().parts.push_back(mebibytes(m.memory.at_peak[std::size_t(use)]));
  }
  return halftone::lab::svg::draw(bars);
}

/// Means of as many steps as make about a hundred points.
inline std::string loss_drawing(const std::vector<Measured>& all) {
  halftone::lab::svg::Plot plot{.title = "training loss"};
  plot.x.label = "step", plot.y = {.label = "loss", .logarithmic = true};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::vector<double>& losses = all[i].losses;
    halftone::lab::svg::Curve curve{.name = all[i].strategy, .points = {}, .style = int(i)};
    const std::size_t width = losses.size() / 100 + 1;
    for (std::size_t from = 0; from < losses.size(); from += width) {
      const std::size_t to = std::min(from + width, losses.size());
      double sum = 0;
      for (std::size_t step = from; step < to; ++step) sum += losses[step];
      curve.points.push_back({double(to), sum / double(to - from)});
    }
    plot.curves.push_back(std::move(curve));
  }
  return halftone::lab::svg::draw(plot);
}

/// A row per operation: in what it ran under each strategy, and what its casts destroyed.
inline std::string cast_table(const std::vector<Measured>& all) {
  namespace html = halftone::lab::html;
  std::vector<std::string> heads{"operation"}, order;
  std::map<std::string, std::map<std::size_t, std::string>> cells;
  for (std::size_t i = 0; i < all.size(); ++i) {
    heads.push_back(html::escaped(all[i].strategy));
    for (const auto& entry : all[i].casts) {
      if (!cells.contains(entry.op)) order.push_back(entry.op);
      std::string& cell = cells[entry.op][i];
      cell += (cell.empty() ? "" : "<br/>") + html::escaped(entry.runs_in);
      if (entry.casts > 0)
        cell += " (" + std::to_string(entry.casts) +
                (entry.cache_hits > 0 ? " casts, " + std::to_string(entry.cache_hits) + " found)"
                 : entry.casts == 1   ? " cast)"
                                      : " casts)");
      if (entry.to_zero > 0) cell += ", " + std::to_string(entry.to_zero) + " to 0";
      if (entry.to_infinity > 0) cell += ", " + std::to_string(entry.to_infinity) + " to infinity";
    }
  }
  html::Table table(heads, heads.size());
  for (const std::string& op : order) {
    std::vector<std::string> row{html::escaped(op)};
    for (std::size_t i = 0; i < all.size(); ++i)
      row.push_back(cells[op].contains(i) ? cells[op][i] : "as it comes");
    table.row(row);
  }
  return table.rows() > 0 ? table.text() : html::paragraph("No strategy here has a region.");
}

inline std::string figure_table(const std::vector<Measured>& all) {
  namespace html = halftone::lab::html;
  html::Table table({"strategy", "test accuracy, %", "ms per step", "speed-up over fp32",
                     "peak, MiB", "parameters at rest", "steps skipped", "final loss"});
  const auto fp32 = std::ranges::find(all, "fp32", &Measured::strategy);
  for (const Measured& m : all)
    table.row(
        {html::escaped(m.strategy), with_digits(100 * m.test_accuracy, 2), with_digits(m.ms, 2),
         fp32 == all.end() ? "-" : with_digits(fp32->ms / m.ms, 2) + "x",
         with_digits(mebibytes(m.memory.total_peak), 2), with_digits(m.parameter_ratio, 2) + "x",
         std::to_string(m.skipped_steps), with_digits(m.final_loss, 4)});
  return table.text();
}

inline std::string comparison_page(const std::vector<Measured>& all) {
  namespace html = halftone::lab::html;
  const auto section = [](const char* title, const std::string& content) {
    return html::element("section", "", "\n" + html::element("h2", "", title) + "\n" + content);
  };
  const Measured& first = all.front();
  return html::document(
      "precision strategies compared",
      html::element("h1", "", "Precision strategies compared") + "\n" +
          html::paragraph(first.workload + " on Fashion-MNIST, " + std::to_string(first.epochs) +
                          (first.epochs == 1 ? " epoch in batches of " : " epochs in batches of ") +
                          std::to_string(first.batch) + " on " + first.device + ", " +
                          std::to_string(first.threads) +
                          " threads: the same model from the same weights on the same batches.") +
          section("Figures", figure_table(all) +
                                 html::paragraph("Parameters at rest: with what is kept beside "
                                                 "them (masters, remainders, compensation), over "
                                                 "f32 parameters. ms per step: the median.")) +
          section("Memory and losses", html::figures({memory_drawing(all), loss_drawing(all)})) +
          section("What was cast in the first step",
                  html::paragraph("In what each operation of a region ran, how many of its inputs "
                                  "were cast for that, and how many of those casts the cache "
                                  "had.") +
                      cast_table(all)));
}
