// The baseline of a sweep, and the effects of its axes.
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include <halftone/core/error.h>
#include <halftone/lab/statistics.h>
#include <halftone/lab/sweep.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

namespace {

using Places = std::vector<std::size_t>;

/// Losses by the cell's places and the seed.
using Losses = std::map<std::pair<Places, uint64_t>, double>;

Losses losses_of(const std::vector<Cell>& cells, const std::vector<RunResult>& runs) {
  Losses losses;
  for (const Cell& cell : cells)
    for (const RunResult& run : runs)
      if (run.policy == cell.name) losses[{cell.places, run.seed}] = run.loss;
  return losses;
}

std::vector<uint64_t> seeds_in(const std::vector<RunResult>& runs) {
  std::vector<uint64_t> seeds;
  for (const RunResult& run : runs)
    if (std::ranges::find(seeds, run.seed) == seeds.end()) seeds.push_back(run.seed);
  return seeds;
}

/// A value of an axis.
struct Choice {
  std::size_t axis, value;
};

Places with(Places places, const Choice& choice) {
  places[choice.axis] = choice.value;
  return places;
}

std::string text_of(const Interval& interval) {
  return percent(interval.mean) +
         (std::isfinite(interval.half) ? " +- " + percent(interval.half) : "");
}

}  // namespace

const std::string& Cell::workload(const std::string& usual) const {
  for (const auto& [name, value] : options)
    if (name == "--workload") return value;
  return usual;
}

const Cell& baseline_of(const std::string& text, const std::vector<Axis>& axes,
                        const std::vector<Cell>& cells) {
  const std::vector<std::string> names = short_names(axes);
  Places wanted(axes.size());
  std::size_t named = 0;
  bool once = true;
  for (std::size_t i = 0; i < axes.size(); ++i)
    for (std::size_t v = 0, found = 0; v < axes[i].values.size(); ++v) {
      // A name follows the start or a comma, and a value ends before a comma or the end.
      const std::string part = names[i] + "=" + axes[i].values[v];
      if (("," + text + ",").find("," + part + ",") == std::string::npos) continue;
      wanted[i] = v, named += part.size() + 1, once = once && ++found == 1;
    }
  if (!once || named != text.size() + !text.empty()) {
    std::string choices;
    for (std::size_t i = 0; i < axes.size(); ++i)
      choices += (i ? "," : "") + names[i] + "=" + axes[i].values.front();
    fail<UsageError>("--against", in_quotes(text), " is not a cell. Give values of axes, such as ",
                     in_quotes(choices), ".");
  }
  return *std::ranges::find(cells, wanted, &Cell::places);
}

std::string effects_of(const std::vector<Axis>& axes, const std::vector<Cell>& cells,
                       const Cell& baseline, const std::vector<RunResult>& runs) {
  if (axes.size() < 2) return "";
  const Losses losses = losses_of(cells, runs);
  const std::vector<uint64_t> seeds = seeds_in(runs);
  const std::vector<std::string> names = short_names(axes);
  std::vector<Choice> choices;  // all values but the baseline's
  for (std::size_t i = 0; i < axes.size(); ++i)
    for (std::size_t v = 0; v < axes[i].values.size(); ++v)
      if (v != baseline.places[i]) choices.push_back({i, v});
  const auto name_of = [&](const Choice& c) {
    return names[c.axis] + "=" + axes[c.axis].values[c.value];
  };
  // The relative change of a cell's loss from its loss with the baseline's value on that axis.
  const auto usual = [&](std::size_t axis) { return Choice{axis, baseline.places[axis]}; };
  const auto change = [&](const Places& places, std::size_t axis, uint64_t seed) {
    return relative_difference(losses.at({places, seed}),
                               losses.at({with(places, usual(axis)), seed}));
  };
  // Over the seeds, the mean of a value over the cells that have all of some choices.
  const auto mean_over_cells = [&](std::initializer_list<Choice> all, auto value) {
    std::vector<double> by_seed;
    for (const uint64_t seed : seeds) {
      double sum = 0;
      int64_t count = 0;
      for (const Cell& cell : cells)
        if (std::ranges::all_of(all,
                                [&](const Choice& c) { return cell.places[c.axis] == c.value; }))
          sum += value(cell.places, seed), ++count;
      by_seed.push_back(sum / double(count));
    }
    return text_of(interval_of(by_seed));
  };

  Table effects({"value", "effect on the loss, 95 %"});
  for (const Choice& one : choices)
    effects.row({name_of(one), mean_over_cells({one}, [&](const Places& places, uint64_t seed) {
                   return change(places, one.axis, seed);
                 })});
  Table interactions({"both", "beyond the sum of the effects, 95 %"});
  for (const Choice& one : choices)
    for (const Choice& other : choices)
      if (one.axis < other.axis)
        interactions.row({name_of(one) + ", " + name_of(other),
                          mean_over_cells({one, other}, [&](const Places& places, uint64_t seed) {
                            return change(places, one.axis, seed) -
                                   change(with(places, usual(other.axis)), one.axis, seed);
                          })});
  std::ostringstream text;
  text << "\nmean over the other axes, against the value of " << baseline.name << '\n'
       << effects << '\n'
       << interactions;
  return text.str();
}

}  // namespace halftone::lab
