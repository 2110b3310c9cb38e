// The search for a policy: its space, and its steps.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include <halftone/lab/trial.h>
#include <halftone/lab/workload.h>
#include <halftone/policy/policy_file.h>
#include <halftone/policy/session.h>

namespace halftone::lab {

// The rules that a search may add, in the language of policy files.

/// Returns the sites that one pass of the workload's example meets under a policy, in the order of
/// computation.
std::vector<policy::ResolvedSite> sites_of(const policy::PolicyFile& base,
                                           const Workload& workload);

/// Returns the rules that would change something, on top of `base`, in a workload's pass:
///   ops      one for each kind of operation
///   modules  one for each module that runs operations
///   roles    one for each kind of product and role (only quantizers)
///   x.json   the rules of a policy file
/// `to` is the dtype or grid that the rules request: a word of "compute" (low, bf16, f16, f32), or
/// a format or quantizer (e4m3, mxfp8) for the operands and gradients of products. If the base has
/// no autocast, results return to f32, because no region casts the next operands. Each rule has a
/// name, "layer_norm -> low". Throws UsageError for unknown words and lists the known ones.
std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const policy::PolicyFile& base, const Workload& workload);
/// The same for sites that are known.
std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const policy::PolicyFile& base,
                                       const std::vector<policy::ResolvedSite>& sites);

// Finds the rules that cost least accuracy, and combines them in a policy.
//
// Errors of different roundings in a gradient are nearly independent, so their squares add up. That
// is accurate enough to rank rules (HAWQ-V2, arXiv 1911.03852, ranks layers in the same way); the
// chosen rules are then measured together.

/// One rule on top of a base.
struct Candidate {
  policy::Rule rule{};
  Measurement measured{};
  std::string refused{};  // why it cannot run; empty: it ran
};

/// Measures each rule of a space alone on top of `base`, which must be the trial's base. Reports
/// each to `progress`.
std::vector<Candidate> sensitivity(const Trial& trial, const policy::PolicyFile& base,
                                   const std::vector<policy::Rule>& space, std::ostream& progress);

enum class Objective : uint8_t { bytes, time, bits };
/// Returns the objective. Throws UsageError for words other than bytes, time and bits.
Objective objective_named(const std::string& name);
double cost_of(const Measurement& measured, Objective objective);

struct SearchOptions {
  Objective objective = Objective::bytes;
  double budget = 0.02;  // limit of Measurement::added
};

/// The first n rules in the order of gain per squared error.
struct FrontierPoint {
  std::vector<std::string> names{};
  double predicted = 0;  // sqrt(sum of the squares of the rules' `added`)
  Measurement measured{};
};

struct Found {
  Measurement base{}, measured{};
  double predicted = 0;  // of measured.added
  std::vector<Candidate> candidates{};
  std::vector<FrontierPoint> frontier{};  // at most 16 points, whatever the budget
  std::vector<std::string> chosen{}, dropped{};
  policy::PolicyFile policy{};  // the base with the chosen rules
};

/// Takes candidates by gain per squared error while the predicted error stays within the budget,
/// and measures them together. If the measured error is more than twice the prediction, bisection
/// finds the rule that causes it and the rule is dropped. Then the last rules are dropped until the
/// measured error is within the budget, and also rules that save nothing.
Found search(const Trial& trial, const policy::PolicyFile& base, const Measurement& of_base,
             std::vector<Candidate> candidates, const SearchOptions& options,
             std::ostream& progress);

/// Returns a line per candidate, the smallest error first.
std::string table_of(const std::vector<Candidate>& candidates, const Measurement& base);
/// Returns the base and the candidates as JSON.
std::string json_of(const std::vector<Candidate>& candidates, const Measurement& base);
/// Returns the search result and the frontier as text.
std::string table_of(const Found& found, const SearchOptions& options);
/// Returns the search result as JSON for the report (docs/telemetry.md, search.json).
std::string json_of(const Found& found, const SearchOptions& options);

}  // namespace halftone::lab
