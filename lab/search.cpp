// One pass of the workload shows which operations run at which site and in which dtype. Rules are
// written in the language of policy files, and parsed as such.
#include <halftone/lab/search.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ostream>
#include <set>

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/lab/table.h>
#include <halftone/policy/session.h>

namespace halftone::lab {

namespace {

using Json = nlohmann::ordered_json;
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
  Wish(std::string to, const policy::PolicyFile& base)
      : to_(std::move(to)), region_(base.base.autocast) {
    const std::vector<std::string_view> words = policy::compute_names();
    // "tf32" means the grid, which every device supports.
    computes_ = to_ != "tf32" && std::ranges::find(words, to_) != words.end();
    if (!computes_ && !quantizer_named(to_)) {
      std::vector<std::string_view> known = words;
      for (const NamedFormat& format : named_formats()) known.push_back(format.name);
      for (const std::string_view ready : ready_made_quantizers()) known.push_back(ready);
      fail_unknown_name("search", "compute or quantizer", to_, known);
    }
    if (to_ == "low") dtype_ = base.base.autocast;
    else if (to_ == "bf16" || to_ == "f16" || to_ == "f32") dtype_ = dtype_named(to_);
    if (to_ == "low" && !dtype_)
      fail<UsageError>("search", base.base.name,
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

std::vector<policy::Rule> rules_of(const Json& rules, const amp::Strategy& base) {
  const Json file{{"halftone_policy", 1},
                  {"name", "space"},
                  {"extends", "fp32"},
                  {"autocast", base.autocast ? Json(name(*base.autocast)) : Json()},
                  {"rules", rules}};
  return policy::read_text(file.dump(), "search").rules.rules;
}

}  // namespace

std::vector<ResolvedSite> sites_of(const policy::PolicyFile& base, const Workload& workload) {
  const std::unique_ptr<optim::Optimizer> optimizer = optimizer_of(workload);
  amp::Training training =
      amp::apply(policy::watched_strategy_of(base), *workload.model, *optimizer);
  training.backward(loss_of(workload, training, example_of(workload)));
  return policy::session_of(training).resolved();
}

std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const policy::PolicyFile& base, const Workload& workload) {
  if (space.ends_with(".json")) return policy::read(space).rules.rules;
  return search_space(space, to, base, sites_of(base, workload));
}

std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const policy::PolicyFile& base,
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
  return rules.empty() ? std::vector<policy::Rule>{} : rules_of(rules, base.base);
}

// Greedy choice by gain over squared error. For a knapsack of many small items this is within one
// item of the optimum. The result is then measured.

namespace {

using Chosen = std::vector<const Candidate*>;

policy::PolicyFile with_rules(const policy::PolicyFile& base, const Chosen& chosen) {
  policy::PolicyFile file = base;
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
  Search(const Trial& trial, const policy::PolicyFile& base, const Measurement& of_base,
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
  const policy::PolicyFile& base_;
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

std::vector<Candidate> sensitivity(const Trial& trial, const policy::PolicyFile& base,
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

Found search(const Trial& trial, const policy::PolicyFile& base, const Measurement& of_base,
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

}  // namespace halftone::lab
