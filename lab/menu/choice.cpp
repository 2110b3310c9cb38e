// A multiple-choice knapsack, by the slopes of convex hulls.
#include <algorithm>
#include <limits>

#include <halftone/core/error.h>
#include <halftone/lab/menu.h>

namespace halftone::lab {

namespace {

/// Returns the options of a module on the lower convex hull of (bits, score), fewest bits first.
std::vector<std::size_t> hull_of(const MenuModule& module) {
  std::vector<std::size_t> order(module.options.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto& options = module.options;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return options[a].bits != options[b].bits ? options[a].bits < options[b].bits
                                              : options[a].score < options[b].score;
  });
  const auto slope = [&](std::size_t a, std::size_t b) {
    return (options[a].score - options[b].score) / (options[b].bits - options[a].bits);
  };
  std::vector<std::size_t> hull;
  for (const std::size_t next : order) {
    if (!hull.empty() && options[next].score >= options[hull.back()].score) continue;
    while (hull.size() > 1 && slope(hull[hull.size() - 2], hull.back()) <= slope(hull.back(), next))
      hull.pop_back();
    hull.push_back(next);
  }
  return hull;
}

}  // namespace

double mean_bits(const std::vector<MenuModule>& modules, const std::vector<std::size_t>& chosen) {
  double bits = 0, weight = 0;
  for (std::size_t i = 0; i < modules.size(); ++i)
    bits += modules[i].weight * modules[i].options[chosen[i]].bits, weight += modules[i].weight;
  return weight > 0 ? bits / weight : 0;
}

std::vector<std::size_t> choose_from_menu(const std::vector<MenuModule>& modules, double bits) {
  std::vector<std::vector<std::size_t>> hulls;
  std::vector<std::size_t> place, chosen, fewest;  // place: on the hull
  for (const MenuModule& module : modules) {
    hulls.push_back(hull_of(module));
    place.push_back(hulls.back().size() - 1);
    chosen.push_back(hulls.back().back()), fewest.push_back(hulls.back().front());
  }
  constexpr double rounding = 1e-9;
  if (const double least = mean_bits(modules, fewest); least > bits + rounding)
    fail<UsageError>("search", "the budget is ", bits, " bits, and the menu's fewest are ", least,
                     " in the mean. Give more bits, or add a shorter format.");
  while (mean_bits(modules, chosen) > bits + rounding) {
    std::size_t best = modules.size();
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < modules.size(); ++i) {
      if (place[i] == 0) continue;
      const MenuOption &now = modules[i].options[hulls[i][place[i]]],
                       &next = modules[i].options[hulls[i][place[i] - 1]];
      const double loss = (next.score - now.score) / (modules[i].weight * (now.bits - next.bits));
      if (loss < least || best == modules.size()) least = loss, best = i;
    }
    chosen[best] = hulls[best][--place[best]];
  }
  // The last step may have saved more than it had to.
  for (bool better = true; better;) {
    better = false;
    double most = 0;
    std::size_t at = 0, option = 0;
    for (std::size_t i = 0; i < modules.size(); ++i)
      for (std::size_t k = 0; k < modules[i].options.size(); ++k) {
        const double gain = modules[i].options[chosen[i]].score - modules[i].options[k].score;
        if (!(gain > most)) continue;
        std::vector<std::size_t> other = chosen;
        other[i] = k;
        if (mean_bits(modules, other) <= bits + rounding)
          most = gain, at = i, option = k, better = true;
      }
    if (better) chosen[at] = option;
  }
  return chosen;
}

}  // namespace halftone::lab
