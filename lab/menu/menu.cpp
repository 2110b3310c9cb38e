// From scores to rules, and from rules to measured policies.
#include <halftone/lab/menu.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include <halftone/lab/search_space.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

namespace {

MenuPoint measured_point(const Trial& trial, const policy::PolicyFile& base, const Menu& menu,
                         const std::vector<std::size_t>& chosen) {
  MenuPoint point{.policy = base};
  double bits = 0, flops = 0, added = 0, loss = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const OnePassScore& score = menu.score(i, chosen[i]);
    bits += score.flops * score.bits, flops += score.flops;
    added += score.added * score.added, loss += score.loss_change * score.loss_change;
    point.formats.push_back(score.format);
    for (const policy::Rule& rule : menu.rules[i * menu.formats.size() + chosen[i]])
      point.policy.rules.rules.push_back(rule);
  }
  point.bits = bits / flops;
  point.predicted = std::sqrt(added), point.predicted_loss = std::sqrt(loss);
  point.measured = trial.measure(point.policy);
  return point;
}

}  // namespace

Menu menu_of(const Trial& trial, const policy::PolicyFile& base, const Workload& example,
             const std::vector<std::string>& formats) {
  std::vector<policy::ResolvedSite> sites = sites_of(base, example);
  Menu menu{.formats = formats, .scores = one_pass_scores(trial, base, sites, formats)};
  for (std::size_t i = 0; i < menu.scores.size(); i += formats.size())
    menu.paths.push_back(menu.scores[i].path);
  menu.rules.resize(menu.scores.size());
  // Rules are for products: other operations of a module do not ask for them.
  std::erase_if(sites, [&](const policy::ResolvedSite& site) {
    return site.asks != CastClass::low_precision ||
           std::ranges::find(menu.paths, site.site.path) == menu.paths.end();
  });
  for (std::size_t f = 0; f < formats.size(); ++f)
    for (const policy::Rule& rule : search_space("modules", formats[f], base, sites))
      for (std::size_t i = 0; i < menu.paths.size(); ++i)
        if (rule.name == menu.paths[i] + " -> " + formats[f])
          menu.rules[i * formats.size() + f].push_back(rule);
  return menu;
}

std::vector<Candidate> measured_alone(const Trial& trial, const policy::PolicyFile& base,
                                      const Menu& menu, std::ostream& progress) {
  std::vector<policy::Rule> space;
  for (const std::vector<policy::Rule>& rules : menu.rules)
    space.insert(space.end(), rules.begin(), rules.end());
  return sensitivity(trial, base, space, progress);
}

std::vector<MenuPoint> menu_frontier(const Trial& trial, const policy::PolicyFile& base,
                                     const Menu& menu, const std::vector<double>& budgets,
                                     std::ostream& progress) {
  const std::size_t count = menu.formats.size();
  std::vector<MenuModule> modules(menu.paths.size());
  for (std::size_t i = 0; i < modules.size(); ++i)
    for (std::size_t f = 0; f < count; ++f) {
      const OnePassScore& score = menu.score(i, f);
      modules[i].weight = score.flops;
      modules[i].options.push_back({score.bits, score.added * score.added});
    }
  std::vector<MenuPoint> points;
  std::vector<std::vector<std::size_t>> choices;
  for (const double budget : budgets) choices.push_back(choose_from_menu(modules, budget));
  for (std::size_t i = 0; i < budgets.size(); ++i) {
    progress << budgets[i] << " bits" << std::endl;
    points.push_back(measured_point(trial, base, menu, choices[i]));
    points.back().budget = budgets[i];
  }
  for (std::size_t f = 0; f < count; ++f) {
    progress << menu.formats[f] << " for all" << std::endl;
    points.push_back(
        measured_point(trial, base, menu, std::vector<std::size_t>(modules.size(), f)));
  }
  return points;
}

}  // namespace halftone::lab
