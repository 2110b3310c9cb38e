// A session's rules at the sites that it met, in every step and not only in the present one.
#pragma once

#include <string>
#include <vector>

#include <halftone/policy/file/json_value.h>
#include <halftone/policy/session/session.h>

namespace halftone::policy {

/// Steps in which the same rules hold: from the first up to, not including, the second.
struct StepRange {
  int64_t from = 0, to = std::numeric_limits<int64_t>::max();
  bool always() const { return from == 0 && to == std::numeric_limits<int64_t>::max(); }
};
/// "steps 0 to 99", "step 7", "steps from 100"
std::string text_of(const StepRange& steps);

/// What a site gets in some steps.
struct StepTreatment {
  StepRange steps;
  Treatment treatment;
};

class ResolvedRules {
 public:
  /// The session must outlive this.
  explicit ResolvedRules(const PolicySession& session);

  const std::vector<ResolvedSite>& sites() const { return sites_; }
  /// Whether a rule matches a site in some step.
  bool reaches(std::size_t rule, const ResolvedSite& site) const;
  bool any_reaches(const ResolvedSite& site) const;
  /// In the order of steps; neighbours differ.
  std::vector<StepTreatment> treatments(const ResolvedSite& site) const;

  /// {"asks", "computes_in", "treatment": [{"steps", "does": {"result", roles, "accumulate"}}]}:
  /// everything at a site that has an effect on numbers; neither names nor numbers of rules.
  /// "compute" is in what is done after the first steps, where it is another.
  Json content_of(const ResolvedSite& site) const;
  /// "parameters" and "states", as their grids, "evaluation" and "seed"; "communication" where
  /// gradients do not travel as they are.
  Json content_beside_sites() const;
  /// FNV-1a 64 of both, for all sites in their order.
  std::string hash() const;

 private:
  const Rulebook& book_;
  const PolicySession::Settings& settings_;
  RuleMatcher matcher_;
  std::vector<ResolvedSite> sites_;
  std::vector<StepRange> ranges_{};
};

/// In what a site computes: "bf16", or "f32, i64" where operands differ. Under a treatment that
/// casts otherwise than the one that it was met under, which nobody has seen, the word of its rule.
std::string computes_in(const ResolvedSite& site, const Treatment& now, const Treatment& met);

}  // namespace halftone::policy
