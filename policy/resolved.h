// A session's rules at the sites it has met, in every step and not only in the present one.
#pragma once

#include <string>
#include <vector>

#include <halftone/policy/json_value.h>
#include <halftone/policy/session.h>

namespace halftone::policy {

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
  explicit ResolvedRules(const PolicySession& session);

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
  const PolicySession::Settings& settings_;
  RuleMatcher matcher_;
  std::vector<ResolvedSite> sites_;
  std::vector<StepRange> ranges_{};
};

/// Returns the dtype a site computes in: "bf16", or "f32, i64" if operands differ. If its treatment
/// casts otherwise than when the site was observed, returns the word of its rule.
std::string computes_in(const ResolvedSite& site, const Treatment& now, const Treatment& met);

}  // namespace halftone::policy
