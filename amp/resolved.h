// The effect of a policy on a model, as data: for the tables of `halftone-lab show` and for checks
// before a training.
#pragma once

#include <string>
#include <vector>

#include <halftone/core/json_value.h>
#include <halftone/amp/session.h>

namespace halftone::policy {

// A session's rules at the sites it has met, in every step and not only in the present one.

/// Steps in which the same rules hold: from the first up to, not including, the second.
struct StepRange {
  int64_t from = 0, to = std::numeric_limits<int64_t>::max();
  bool always() const { return from == 0 && to == std::numeric_limits<int64_t>::max(); }
};
/// Returns "steps 0 to 99", "step 7" or "steps from 100".
std::string text_of(const StepRange& steps);

/// The treatment of a site in some steps.
struct StepTreatment {
  StepRange steps;
  Treatment treatment;
};

class ResolvedRules {
 public:
  /// The session must outlive this.
  explicit ResolvedRules(const Session& session);

  const std::vector<ResolvedSite>& sites() const { return sites_; }
  /// Returns whether a rule matches a site in some step.
  bool reaches(std::size_t rule, const ResolvedSite& site) const;
  bool any_reaches(const ResolvedSite& site) const;
  /// Returns treatments in the order of steps; neighbors differ.
  std::vector<StepTreatment> treatments(const ResolvedSite& site) const;

  /// Returns {"asks", "computes_in", "treatment": [{"steps", "does": {"result", roles,
  /// "accumulate"}}]}: everything at a site that has an effect on numbers, without names and
  /// numbers of rules. Entries after the first steps also have "compute" if it changes.
  Json content_of(const ResolvedSite& site) const;
  /// Returns "parameters" and "states", as their grids, "evaluation" and "seed"; "communication" if
  /// the wire format is not that of the gradients.
  Json content_without_sites() const;
  /// Returns FNV-1a 64 of both, for all sites in their order.
  std::string hash() const;

 private:
  const Rulebook& book_;
  const Session::Settings& settings_;
  RuleMatcher matcher_;
  std::vector<ResolvedSite> sites_;
  std::vector<StepRange> ranges_{};
};

/// Returns the dtype a site computes in: "bf16", or "f32, i64" if operands differ. If its treatment
/// casts otherwise than when the site was observed, returns the word of its rule.
std::string computes_in(const ResolvedSite& site, const Treatment& now, const Treatment& met);

// The effect of a policy on a model, site by site: as a table for people, as JSON, as a hash, and
// compared with another policy. They cover every step, not only the present one.

/// Returns one line per site, in the order of computation: the cast class it asks for, the dtype it
/// computes in, and each role with a rule. Equal neighbors in a list of layers share one line. If
/// rules begin or end with steps, a site has a line for each range. Then follow the grids of
/// parameters and states, the sites that each rule reaches, and the products without a rule.
std::string resolved_table(const Session& session);
/// Returns {"sites": [...], "rules": [...], "parameters": ..., "states": ..., "evaluation": ...,
/// "seed": ..., "hash": "..."}; docs/policy_files.md has the fields.
std::string resolved_json(const Session& session);
/// Returns the differences of the second policy's effect from the first's, ignoring names: by site,
/// then parameters, states, evaluation and seed; "" if nothing differs.
std::string resolved_difference(const Session& before, const Session& after);
/// The same: {"sites": {name: {"before": ..., "after": ...}}, "parameters": {...}, ...}, only with
/// differences; null for a site that one of them lacks.
std::string resolved_difference_json(const Session& before, const Session& after);
/// Returns FNV-1a 64 of everything that has an effect on numbers: sites with their treatments,
/// grids of parameters and states, seed; in 16 hexadecimal digits. Names do not count.
std::string resolved_hash(const Session& session);

// The sites that each rule reaches in the steps in which it holds, and those without a rule.

/// Returns a line per rule, the products that no rule reaches in any step, and warnings. A rule
/// gets a warning if it names layers of a list by number and no rule reaches some of the others.
std::string coverage(const Session& session, const ResolvedRules& resolved);

}  // namespace halftone::policy
