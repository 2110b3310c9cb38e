// Which rules cost least accuracy, and a policy made of the best of them.
//
// Errors that different roundings leave in a gradient are nearly independent, so that they add up
// as squares; that is good enough to rank rules (HAWQ-V2, arXiv 1911.03852, ranks layers alike),
// and whatever is chosen is measured as a whole.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include <halftone/lab/trial.h>

namespace halftone::lab {

/// A rule alone on top of a base.
struct Candidate {
  policy::Rule rule{};
  Measurement measured{};
  std::string refused{};  // why it cannot run; empty: it ran
};

/// Each rule of a space alone on top of `base`, which the trial has been told of. Says each to
/// `progress`.
std::vector<Candidate> sensitivity(const Trial& trial, const policy::PolicyFile& base,
                                   const std::vector<policy::Rule>& space, std::ostream& progress);

enum class Objective : uint8_t { bytes, time, bits };
/// Throws UsageError for words other than bytes, time and bits.
Objective objective_named(const std::string& name);
double cost_of(const Measurement& measured, Objective objective);

struct SearchOptions {
  Objective objective = Objective::bytes;
  double budget = 0.02;  // of Measurement::added
};

/// The first so many rules in the order of gain per squared error.
struct FrontierPoint {
  std::vector<std::string> names{};
  double predicted = 0;  // sqrt(sum of squares of what each adds)
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
/// and measures them together. Where that is more than twice the prediction, bisection finds the
/// rule to blame, which goes; then the last ones go until the measured error is within the budget,
/// and those without which nothing is lost.
Found search(const Trial& trial, const policy::PolicyFile& base, const Measurement& of_base,
             std::vector<Candidate> candidates, const SearchOptions& options,
             std::ostream& progress);

/// A line per candidate, the smallest error first.
std::string table_of(const std::vector<Candidate>& candidates, const Measurement& base);
/// What was found, and the frontier.
std::string table_of(const Found& found, const SearchOptions& options);
/// For the report (docs/telemetry.md, search.json).
std::string json_of(const Found& found, const SearchOptions& options);

}  // namespace halftone::lab
