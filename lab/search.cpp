// One pass of the workload shows which operations run at which site and in which dtype. Rules are
// written in the language of policy files, and parsed as such.
#include <halftone/core/json_value.h>
#include <halftone/lab/search.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <ostream>
#include <set>

#include <halftone/autograd/node.h>
#include <halftone/core/error.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/table.h>
#include <halftone/amp/policy_reader.h>
#include <halftone/amp/session.h>

namespace halftone::lab {

namespace {

using policy::ResolvedSite;
using policy::Role;

bool is_product(const ResolvedSite& site) { return site.flops > 0; }

/// Whether the blocks of a tensor depend on the dimension that a product sums over.
bool has_direction(const Quantizer& quantizer) {
  const Scaling& scaling = quantizer.scaling;
  return scaling.per == Scaling::Per::block && scaling.rows != scaling.columns;
}

/// The use of an operand in the other product of backward.
Role use_in_backward(Role role) {
  return role == Role::input    ? Role::input_backward
         : role == Role::weight ? Role::weight_backward
                                : Role::grad_output_weight;
}

/// The treatment that a rule requests.
class Wish {
 public:
  Wish(std::string to, const amp::Policy& base) : to_(std::move(to)), region_(base.autocast) {
    constexpr auto words = words_of<policy::Compute>;
    // "tf32" means the grid, which every device supports.
    computes_ = to_ != "tf32" && to_ != "hardware" && std::ranges::find(words, to_) != words.end();
    if (!computes_ && !quantizer_named(to_)) {
      std::vector<std::string_view> known(words.begin(), words.end());
      std::erase(known, "hardware");  // it needs a GPU, and operands in f8
      for (const NamedFormat& format : named_formats()) known.push_back(format.name);
      for (const std::string_view ready : ready_made_quantizers()) known.push_back(ready);
      fail_unknown_name("search", "compute or quantizer", to_, known);
    }
    if (to_ == "low") dtype_ = base.autocast;
    else if (to_ == "bf16" || to_ == "f16" || to_ == "f32") dtype_ = dtype_named(to_);
    if (to_ == "low" && !dtype_)
      fail<UsageError>("search", base.name,
                       " has no autocast, so there is no \"low\". Use --to bf16 or f16.");
  }
  bool quantizes() const { return !computes_; }
  const std::string& name() const { return to_; }

  /// Returns whether the rule would change an operation.
  bool changes(const ResolvedSite& site) const {
    if (quantizes()) return is_product(site);
    return std::ranges::any_of(site.operands, [&](std::optional<DType> dtype) {
      return dtype && is_floating(*dtype) && (!dtype_ || *dtype != *dtype_);
    });
  }
  void ask(Json& rule, const std::set<Role>& roles) const {
    if (!quantizes()) {
      rule["compute"] = to_;
      // Without a region, the next operation does not cast this result.
      if (!region_) rule["result"] = "f32";
      return;
    }
    const Quantizer quantizer = *quantizer_named(to_);
    // The region's dtype cannot hold numbers under such scales.
    if (region_ && !quantizer.exact_in(*region_))
      rule["compute"] = "f32", rule["result"] = halftone::name(*region_);
    for (const Role role : roles) {
      rule[std::string(policy::name(role))] = to_;
      // Backward products sum over other dimensions, and need blocks along those.
      if (has_direction(quantizer)) rule[std::string(policy::name(use_in_backward(role)))] = to_;
    }
  }

 private:
  std::string to_;
  std::optional<DType> region_{};  // the region casts to this
  bool computes_ = false;
  std::optional<DType> dtype_{};
};

/// Returns the operands of products, and the incoming gradient.
std::set<Role> roles_of(const ResolvedSite& site) {
  std::set<Role> roles{Role::grad_output};
  for (const Role role : site.roles)
    if (role == Role::input || role == Role::weight) roles.insert(role);
  return roles;
}

std::vector<policy::Rule> rules_of(const Json& rules, const amp::Policy& base) {
  const Json file{{"halftone_policy", 1},
                  {"name", "space"},
                  {"extends", "fp32"},
                  {"autocast", base.autocast ? Json(name(*base.autocast)) : Json()},
                  {"rules", rules}};
  return policy::read_text(file.dump(), "search").rules.rules;
}

}  // namespace

std::vector<ResolvedSite> sites_of(const amp::Policy& base, const Workload& workload) {
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(workload);
  amp::Training training = amp::apply(policy::watched(base), *workload.model, *optimizer);
  training.backward(loss_of(workload, training, example_of(workload)));
  return policy::session_of(training).resolved();
}

std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const amp::Policy& base, const Workload& workload) {
  if (space.ends_with(".json")) return policy::read(space).rules.rules;
  return search_space(space, to, base, sites_of(base, workload));
}

std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const amp::Policy& base,
                                       const std::vector<ResolvedSite>& sites) {
  const Wish wish(to, base);
  const bool by_role = space == "roles", by_module = space == "modules";
  if (space != "ops" && !by_role && !by_module)
    fail_unknown_name("search", "space", space,
                      std::vector<std::string_view>{"ops", "modules", "roles"});
  if (by_role && !wish.quantizes())
    fail<UsageError>("search", "\"", to,
                     "\" says nothing of a role. Use --to with a quantizer, such as e4m3.");
  std::vector<std::string> order;                // in the order of the first occurrence
  std::map<std::string, std::set<Role>> groups;  // operations or modules, with their roles
  for (const ResolvedSite& site : sites) {
    if (!wish.changes(site) || (by_module && site.site.path.empty())) continue;
    const std::string group = by_module ? site.site.path : std::string(site.site.op);
    if (!groups.contains(group)) order.push_back(group);
    groups[group].merge(roles_of(site));
  }
  Json rules = Json::array();
  const auto add = [&](const std::string& group, const std::set<Role>& roles,
                       const std::string& name) {
    Json rule{{"name", name + " -> " + wish.name()}};
    if (by_module) rule["match"] = {{"path", group}};
    else rule["match"] = {{"op", group}};
    if (by_module && wish.quantizes()) rule["match"]["asks"] = "low_precision";
    wish.ask(rule, roles);
    rules.push_back(std::move(rule));
  };
  for (const std::string& group : order) {
    if (!by_role) add(group, groups[group], group);
    else
      for (const Role role : groups[group])
        add(group, {role}, group + ' ' + std::string(policy::name(role)));
  }
  return rules.empty() ? std::vector<policy::Rule>{} : rules_of(rules, base);
}

// Greedy choice by gain over squared error. For a knapsack of many small items this is within one
// item of the optimum. The result is then measured.

namespace {

using Chosen = std::vector<const Candidate*>;

amp::Policy with_rules(const amp::Policy& base, const Chosen& chosen) {
  amp::Policy file = base;
  for (const Candidate* candidate : chosen) file.rules.rules.push_back(candidate->rule);
  return file;
}

double predicted_error(const Chosen& chosen) {
  double squares = 0;
  for (const Candidate* candidate : chosen) squares += std::pow(candidate->measured.added, 2);
  return std::sqrt(squares);
}

std::vector<std::string> names_of(const Chosen& chosen) {
  std::vector<std::string> names;
  for (const Candidate* candidate : chosen) names.push_back(candidate->rule.name);
  return names;
}

/// A time within 1 % counts as equal.
bool gains(double gain, double whole, Objective objective) {
  return gain > (objective == Objective::time ? 0.01 * whole : 0.0);
}

class Search {
 public:
  Search(const Trial& trial, const amp::Policy& base, const Measurement& of_base,
         const SearchOptions& options, std::ostream& progress)
      : trial_(trial), base_(base), of_base_(of_base), options_(options), progress_(progress) {}

  Chosen by_ratio(const std::vector<Candidate>& candidates) const {
    Chosen order;
    for (const Candidate& candidate : candidates)
      if (candidate.refused.empty() && std::isfinite(candidate.measured.added) &&
          gains(gain_of(candidate), cost_of(of_base_, options_.objective), options_.objective))
        order.push_back(&candidate);
    std::ranges::stable_sort(order, std::greater<>{}, [&](const Candidate* candidate) {
      return gain_of(*candidate) / std::max(std::pow(candidate->measured.added, 2), 1e-30);
    });
    return order;
  }

  Measurement together(const Chosen& chosen) const {
    progress_ << chosen.size() << " rules together" << std::endl;
    return trial_.measure(with_rules(base_, chosen));
  }

  std::vector<FrontierPoint> frontier(const Chosen& order) const {
    constexpr std::size_t most = 16;
    std::vector<FrontierPoint> points;
    for (std::size_t i = 0; i < std::min(most, order.size()); ++i) {
      const std::size_t count = (i + 1) * order.size() / std::min(most, order.size());
      const Chosen first(order.begin(), order.begin() + std::ptrdiff_t(count));
      points.push_back({names_of(first), predicted_error(first), together(first)});
    }
    return points;
  }

  /// Goes through the candidates in the order of their ratios and takes each that still fits.
  Chosen within_budget(const Chosen& order) const {
    Chosen chosen;
    for (const Candidate* candidate : order) {
      chosen.push_back(candidate);
      if (predicted_error(chosen) > options_.budget) chosen.pop_back();
    }
    return chosen;
  }

  /// Removes rules that save nothing in addition to the others.
  void prune(Chosen& chosen, Found& found) const {
    for (const Candidate* candidate : Chosen(chosen.rbegin(), chosen.rend())) {
      if (chosen.size() == 1) return;
      Chosen others = chosen;
      std::erase(others, candidate);
      const Measurement measured = together(others);
      const double now = cost_of(found.measured, options_.objective);
      if (gains(cost_of(measured, options_.objective) - now, now, options_.objective)) continue;
      chosen = std::move(others), found.measured = measured;
      found.dropped.push_back(candidate->rule.name);
    }
  }

  /// Finds the rule whose error exceeds its prediction most, by bisection into the worse half.
  const Candidate* culprit(Chosen suspects) const {
    while (suspects.size() > 1) {
      const auto middle = suspects.begin() + std::ptrdiff_t(suspects.size() / 2);
      const Chosen first(suspects.begin(), middle), second(middle, suspects.end());
      suspects = excess(first) >= excess(second) ? first : second;
    }
    return suspects.front();
  }

  void drop(Chosen& chosen, const Candidate* candidate, Found& found) const {
    std::erase(chosen, candidate);
    found.dropped.push_back(candidate->rule.name);
    progress_ << "without " << candidate->rule.name << ": ";
    found.measured = together(chosen);
  }

 private:
  double gain_of(const Candidate& candidate) const {
    return cost_of(of_base_, options_.objective) - cost_of(candidate.measured, options_.objective);
  }
  double excess(const Chosen& chosen) const {
    return std::pow(together(chosen).added, 2) - std::pow(predicted_error(chosen), 2);
  }

  const Trial& trial_;
  const amp::Policy& base_;
  const Measurement& of_base_;
  const SearchOptions& options_;
  std::ostream& progress_;
};

}  // namespace

Objective objective_named(const std::string& name) {
  if (name == "bytes") return Objective::bytes;
  if (name == "time") return Objective::time;
  if (name == "bits") return Objective::bits;
  fail_unknown_name("search", "objective", name,
                    std::vector<std::string_view>{"bytes", "time", "bits"});
}

double cost_of(const Measurement& measured, Objective objective) {
  switch (objective) {
    case Objective::bytes: return measured.bytes;
    case Objective::time: return measured.milliseconds;
    case Objective::bits: return measured.bits;
  }
  return 0;
}

std::vector<Candidate> sensitivity(const Trial& trial, const amp::Policy& base,
                                   const std::vector<policy::Rule>& space, std::ostream& progress) {
  std::vector<Candidate> candidates;
  for (const policy::Rule& rule : space) {
    Candidate candidate{.rule = rule};
    try {
      candidate.measured = trial.measure(with_rules(base, {&candidate}));
      progress << rule.name << ": adds " << percent(candidate.measured.added) << std::endl;
    } catch (const Error& error) {
      candidate.refused = error.what();
      progress << rule.name << ": " << candidate.refused << std::endl;
    }
    candidates.push_back(std::move(candidate));
  }
  return candidates;
}

// The Hessian's scores: traces once, and the rounded parameters of each rule by one pass.

namespace {

double squared_distance(const Tensor& x, const Tensor& y) {
  const std::vector<double> a = x.to_vector<double>(), b = y.to_vector<double>();
  double sum = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

/// Returns the largest squared error of each parameter over its uses; only of those that err.
std::map<std::string, double> squared_errors(const std::vector<ParameterUse>& uses,
                                             const std::map<std::string, Tensor>& of_base) {
  std::map<std::string, double> errors;
  for (const ParameterUse& use : uses) {
    const auto before = of_base.find(use.place);
    if (before == of_base.end() || before->second.shape() != use.value.shape()) continue;
    if (const double error = squared_distance(use.value, before->second); error > 0)
      errors[use.parameter] = std::max(errors[use.parameter], error);
  }
  return errors;
}

}  // namespace

void add_hessian_scores(const Trial& trial, const amp::Policy& base,
                        std::vector<Candidate>& candidates, int64_t probes) {
  const std::vector<ParameterTrace> traces = trial.traces(probes);
  std::map<std::string, Tensor> of_base;
  for (ParameterUse& use : trial.uses_of_parameters(base))
    of_base.emplace(use.place, std::move(use.value));
  for (Candidate& candidate : candidates) {
    if (!candidate.refused.empty()) continue;
    const std::map<std::string, double> errors =
        squared_errors(trial.uses_of_parameters(with_rules(base, {&candidate})), of_base);
    HessianScore score;
    for (const ParameterTrace& curvature : traces) {
      const auto error = errors.find(curvature.name);
      if (error == errors.end()) continue;
      const double weight = error->second / double(curvature.elements);
      score.score += weight * curvature.trace.trace;
      score.low += weight * curvature.trace.low, score.high += weight * curvature.trace.high;
      score.parameters.push_back({curvature, error->second});
    }
    if (!score.parameters.empty()) candidate.hessian = std::move(score);
  }
}

HessianCheck check_hessian_scores(const std::vector<Candidate>& candidates) {
  std::vector<double> scores, added, moved;
  for (const Candidate& candidate : candidates) {
    if (!candidate.hessian || !std::isfinite(candidate.hessian->score)) continue;
    scores.push_back(candidate.hessian->score);
    added.push_back(candidate.measured.added), moved.push_back(candidate.measured.loss_moved);
  }
  return {scores.size(), spearman(scores, added), spearman(scores, moved)};
}

Found search(const Trial& trial, const amp::Policy& base, const Measurement& of_base,
             std::vector<Candidate> candidates, const SearchOptions& options,
             std::ostream& progress) {
  if (!(options.budget > 0))
    fail<UsageError>("search", "the budget is ", options.budget,
                     ". Give the relative error of gradients that may be added, such as 0.02.");
  Found found{.base = of_base, .measured = of_base, .candidates = std::move(candidates)};
  const Search at(trial, base, of_base, options, progress);
  const Chosen order = at.by_ratio(found.candidates);
  found.frontier = at.frontier(order);
  Chosen chosen = at.within_budget(order);
  if (!chosen.empty()) found.measured = at.together(chosen);
  while (!chosen.empty() && !(found.measured.added <= 2 * predicted_error(chosen)))
    at.drop(chosen, at.culprit(chosen), found);
  while (!chosen.empty() && !(found.measured.added <= options.budget))
    at.drop(chosen, chosen.back(), found);
  at.prune(chosen, found);
  found.predicted = predicted_error(chosen);
  found.chosen = names_of(chosen);
  found.policy = with_rules(base, chosen);
  return found;
}

// From scores to rules, and from rules to measured policies.

namespace {

MenuPoint measured_point(const Trial& trial, const amp::Policy& base, const Menu& menu,
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

Menu menu_of(const Trial& trial, const amp::Policy& base, const Workload& example,
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

std::vector<Candidate> measured_alone(const Trial& trial, const amp::Policy& base, const Menu& menu,
                                      std::ostream& progress) {
  std::vector<policy::Rule> space;
  for (const std::vector<policy::Rule>& rules : menu.rules)
    space.insert(space.end(), rules.begin(), rules.end());
  return sensitivity(trial, base, space, progress);
}

std::vector<MenuPoint> menu_frontier(const Trial& trial, const amp::Policy& base, const Menu& menu,
                                     const std::vector<double>& budgets, std::ostream& progress) {
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

// A multiple-choice knapsack, by the slopes of convex hulls.

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

// Replays the products of a pass on quantized operands.

namespace {

using policy::Role;

/// The sums over the replays of one module under one format; sums of squares of errors, and of what
/// has the errors.
struct BatchSums {
  double loss = 0;  // sum (dL/dy)^2 (dy)^2
  double bend = 0;  // the same times the number of losses in the mean
  double y_error = 0, y_size = 0;
  double dw_error = 0, dw_size = 0;  // gradients of weights

  /// Adds the sums of a batch, with gradients divided by the loss scale.
  void add(const BatchSums& batch, double scale) {
    const double by = 1 / (scale * scale);
    loss += by * batch.loss, bend += by * batch.bend;
    y_error += batch.y_error, y_size += batch.y_size;
    dw_error += by * batch.dw_error, dw_size += by * batch.dw_size;
  }
};

struct Module {
  std::string path;
  double flops = 0;
  std::vector<BatchSums> batch, all;  // by format
};

double ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

/// Returns the square of Measurement::added that a module adds alone: see search.h. Sums of
/// squares of gradients: of the module after it, and of all.
double added_squared(const BatchSums& sums, double after, double all) {
  constexpr double of_results = 0.02;  // fitted on lenet, lstm_text and gpt_tiny
  const double y = ratio(sums.y_error, sums.y_size);
  return (sums.dw_error + y * after) / all + sums.bend + of_results * y;
}

/// Returns the number of losses whose mean a tensor leads to: images, or rows of other tensors.
double losses_of(const Tensor& y) {
  if (y.rank() == 4) return double(y.size(0));
  return y.rank() == 0 || y.size(-1) == 0 ? 1 : double(y.numel() / y.size(-1));
}

/// A product with its replays, between forward and backward.
struct Replay {
  std::vector<Role> roles;
  std::shared_ptr<Node> exact;
  double losses = 1;
  std::vector<float> y;
  std::vector<std::vector<float>> errors;      // y of a format minus y
  std::vector<std::shared_ptr<Node>> formats;  // nodes on quantized operands
};

class Replayer final : public policy::Observer {
 public:
  Replayer(std::vector<Module>& modules, const std::vector<Quantizer>& formats,
           const std::set<std::string>& sites)
      : modules_(modules), formats_(formats), sites_(sites) {}

  bool begin_pass(int64_t) override {
    replays_.clear();
    return true;
  }

  void tensor(const policy::Seen& seen, const Tensor&, const Tensor& after) override {
    if (seen.role > Role::bias || !sites_.contains(seen.site)) return;
    operands_.resize(std::max(operands_.size(), seen.input + 1));
    operands_[seen.input] = {seen.role, after};
  }

  void ran(std::string_view site, std::span<const Tensor> inputs, Computation& computation,
           const Tensor&) override {
    const std::vector<Operand> operands = std::move(operands_);
    operands_.clear();
    if (!sites_.contains(std::string(site))) return;
    std::vector<Tensor> wide(inputs.size());
    Replay replay;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool given = i < operands.size() && operands[i].value.defined();
      replay.roles.push_back(given ? operands[i].role : Role::bias);
      const Tensor x = given ? operands[i].value : inputs[i];
      wide[i] = x.defined() && is_floating(x.dtype()) ? x.detach().to(f32) : x;
    }
    const Tensor exact = computation.aside(wide, &replay.exact);
    replay.y = exact.to_vector<float>(), replay.losses = losses_of(exact);
    const Contraction sums = replay.exact->info->sums.value_or(sums_over_last);
    for (const Quantizer& format : formats_) {
      std::vector<Tensor> rounded = wide;
      for (std::size_t i = 0; i < wide.size(); ++i)
        if (replay.roles[i] != Role::bias && wide[i].defined() && is_floating(wide[i].dtype()))
          rounded[i] = policy::quantized_along(wide[i], sums.forward.of(i), {.quantizer = format});
      std::shared_ptr<Node>& node = replay.formats.emplace_back();
      std::vector<float> error = computation.aside(rounded, &node).to_vector<float>();
      for (std::size_t i = 0; i < error.size(); ++i) error[i] -= replay.y[i];
      replay.errors.push_back(std::move(error));
    }
    replays_[std::string(site)].push_back(std::move(replay));
  }

  void differentiated(std::string_view site, const Tensor& dy,
                      std::span<const Tensor> gradients) override {
    const auto found = replays_.find(std::string(site));
    if (found == replays_.end() || found->second.empty()) return;
    Replay replay = std::move(found->second.back());
    found->second.pop_back();
    Module& module = module_of(site);
    const Tensor wide = dy.detach().to(f32);
    const std::vector<float> g = wide.to_vector<float>();
    for (std::size_t f = 0; f < formats_.size(); ++f) {
      BatchSums& to = module.batch[f];
      double loss = 0;
      for (std::size_t i = 0; i < g.size(); ++i) {
        const double error = replay.errors[f][i], y = replay.y[i], change = double(g[i]) * error;
        loss += change * change, to.y_error += error * error, to.y_size += y * y;
      }
      to.loss += loss, to.bend += replay.losses * loss;
    }
    for (std::size_t i = 0; i < replay.roles.size(); ++i)
      if (replay.roles[i] == Role::weight && i < gradients.size() && gradients[i].defined())
        add_weight(i, replay, wide, module);
  }

 private:
  /// Replays the product that gives the gradient of a weight.
  void add_weight(std::size_t input, const Replay& replay, const Tensor& dy, Module& module) {
    const Sums along = replay.exact->info->sums.value_or(sums_over_last).gradient.of(input);
    const auto mask = uint32_t(1) << input;
    const std::vector<float> exact = replay.exact->backward_for(dy, mask)[input].to_vector<float>();
    for (std::size_t f = 0; f < formats_.size(); ++f) {
      const Tensor rounded = policy::quantized_along(dy, along, {.quantizer = formats_[f]});
      const std::vector<float> own =
          replay.formats[f]->backward_for(rounded, mask)[input].to_vector<float>();
      double error = 0, size = 0;
      for (std::size_t k = 0; k < own.size(); ++k) {
        const double wanted = exact[k], difference = double(own[k]) - wanted;
        error += difference * difference, size += wanted * wanted;
      }
      module.batch[f].dw_error += error, module.batch[f].dw_size += size;
    }
  }

  struct Operand {
    Role role = Role::bias;
    Tensor value{};
  };
  Module& module_of(std::string_view site) {
    const std::string_view path = site.substr(0, site.rfind('/'));
    return *std::ranges::find(modules_, path, &Module::path);
  }

  std::vector<Module>& modules_;
  const std::vector<Quantizer>& formats_;
  const std::set<std::string>& sites_;
  std::vector<Operand> operands_{};
  std::map<std::string, std::vector<Replay>> replays_{};
};

std::vector<Quantizer> quantizers_of(const std::vector<std::string>& names) {
  std::vector<Quantizer> result;
  for (const std::string& name : names) {
    const std::optional<Quantizer> quantizer = quantizer_named(name);
    if (!quantizer) {
      std::vector<std::string_view> known;
      for (const NamedFormat& format : named_formats()) known.push_back(format.name);
      for (const std::string_view ready : ready_made_quantizers()) known.push_back(ready);
      fail_unknown_name("--menu", "quantizer", name, known);
    }
    if (policy::is_unsigned(quantizer->grid))
      fail<UsageError>("--menu", name,
                       " has no sign bit, and operands have negative numbers. Choose a "
                       "format with a sign, such as e4m3.");
    result.push_back(*quantizer);
  }
  return result;
}

}  // namespace

std::vector<OnePassScore> one_pass_scores(const Trial& trial, const amp::Policy& base,
                                          const std::vector<policy::ResolvedSite>& sites,
                                          const std::vector<std::string>& formats) {
  const std::vector<Quantizer> quantizers = quantizers_of(formats);
  std::vector<Module> modules;
  const auto module_at = [&](const std::string& path) {
    return std::ranges::find(modules, path, &Module::path);
  };
  for (const policy::ResolvedSite& site : sites) {
    if (site.flops <= 0 || site.site.path.empty()) continue;
    if (module_at(site.site.path) == modules.end()) {
      const std::vector<BatchSums> none(quantizers.size());
      modules.push_back({site.site.path, 0, none, none});
    }
    module_at(site.site.path)->flops += site.flops;
  }
  if (modules.empty())
    fail<UsageError>("--menu", "the workload has no product in a module. Choose another.");
  std::set<std::string> replayed;
  for (const policy::ResolvedSite& site : sites)
    if (site.asks == CastClass::low_precision && module_at(site.site.path) != modules.end())
      replayed.insert(policy::name(site.site));
  double losses = 0;
  int batches = 0;
  trial.watch(base, std::make_shared<Replayer>(modules, quantizers, replayed),
              [&](double loss, double scale) {
                losses += std::abs(loss), ++batches;
                for (Module& module : modules)
                  for (std::size_t f = 0; f < quantizers.size(); ++f)
                    module.all[f].add(module.batch[f], scale), module.batch[f] = {};
              });
  std::vector<OnePassScore> scores;
  const double all = trial.size() * trial.size();
  for (std::size_t m = 0; m < modules.size(); ++m) {
    const Module& module = modules[m];
    const double after = m + 1 < modules.size() ? modules[m + 1].all.front().dw_size : all;
    for (std::size_t f = 0; f < quantizers.size(); ++f) {
      const BatchSums& sums = module.all[f];
      BatchSums mean = sums;
      mean.bend /= batches;
      scores.push_back({.path = module.path,
                        .format = formats[f],
                        .bits = quantizers[f].bits_per_element(),
                        .flops = module.flops,
                        .loss_change = ratio(std::sqrt(sums.loss * batches), losses),
                        .added = std::sqrt(added_squared(mean, after, all))});
    }
  }
  return scores;
}

}  // namespace halftone::lab
