// Greedy choice by gain over squared error. For a knapsack of many small items this is within one
// item of the optimum. The result is then measured.
#include <halftone/lab/search.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include <halftone/core/error.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

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
