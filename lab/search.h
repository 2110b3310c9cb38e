// The search for a policy, step by step or by a menu of predictions.
#pragma once

#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include <halftone/lab/trial.h>
#include <halftone/lab/workload.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/session.h>

namespace halftone::lab {

// The search for a policy: its space, and its steps.

// The rules that a search may add, in the language of policy files.

/// Returns the sites that one pass of the workload's example meets under a policy, in the order of
/// computation.
std::vector<policy::ResolvedSite> sites_of(const amp::Policy& base, const Workload& workload);

/// Returns the rules of a space that would change something in a workload's pass under `base`:
///   ops      one for each kind of operation
///   modules  one for each module that runs operations
///   roles    one for each kind of product and role; `to` must be a format or quantizer
///   x.json   all rules of a policy file
/// `to` is what the rules request: a word of "compute" in policy files (low, bf16, f16, f32), or a
/// format or quantizer (e4m3, mxfp8) for the operands and gradients of products. If the base has no
/// autocast, results return to f32, because nothing else casts the next operands. Each rule has a
/// name, "layer_norm -> low". Throws UsageError for unknown words and lists the known ones.
std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const amp::Policy& base, const Workload& workload);
/// The same for `sites`, which sites_of() returned, but without x.json as a space.
std::vector<policy::Rule> search_space(const std::string& space, const std::string& to,
                                       const amp::Policy& base,
                                       const std::vector<policy::ResolvedSite>& sites);

// Finds the rules that cost least accuracy, and combines them in a policy.
//
// Errors of different roundings in a gradient are nearly independent, so their squares add up. That
// is accurate enough to rank rules (HAWQ-V2, arXiv 1911.03852, ranks layers in the same way); the
// chosen rules are then measured together.

/// The part of a rule's HessianScore from one parameter that the rule rounds.
struct RoundedParameter {
  ParameterTrace curvature{};
  double squared_error = 0;  // |w - w under the base|^2, the largest of all uses of w
};
/// A prediction for a rule: the sum, over the parameters that it rounds, of the Hessian's trace per
/// element times the squared error (HAWQ-V2, arXiv 1911.03852). Half of this score estimates the
/// change of the loss by these roundings, because errors of elements are nearly independent.
struct HessianScore {
  double score = 0;
  double low = 0, high = 0;  // with all traces at the lower (upper) ends of their intervals
  std::vector<RoundedParameter> parameters{};
};

/// A rule that a search may add to a base policy, and what it does when it is added alone.
struct Candidate {
  policy::Rule rule{};
  Measurement measured{};
  std::string refused{};                  // why it cannot run; empty: it ran
  std::optional<HessianScore> hessian{};  // nullopt: not asked for, or it rounds no parameter
};

/// Measures each rule of a space alone on top of `base`, which must be the trial's base
/// (Trial::set_base). Writes a line for each rule to `progress`.
std::vector<Candidate> sensitivity(const Trial& trial, const amp::Policy& base,
                                   const std::vector<policy::Rule>& space, std::ostream& progress);

/// Sets `hessian` of each candidate that runs and rounds a parameter, so not of rules for
/// activations and gradients alone. Uses `probes` products with the Hessian per batch.
void add_hessian_scores(const Trial& trial, const amp::Policy& base,
                        std::vector<Candidate>& candidates, int64_t probes);

/// How well the Hessian's scores rank the candidates that have one: Spearman's rank correlation
/// with Measurement::added (of_gradients) and loss_moved (of_loss); NaN below two candidates.
struct HessianCheck {
  std::size_t scored = 0;
  double of_gradients = 0, of_loss = 0;  // the rank correlations
};
HessianCheck check_hessian_scores(const std::vector<Candidate>& candidates);

enum class Objective : uint8_t { bytes, time, bits };
/// Returns the objective. Throws UsageError for words other than bytes, time and bits.
Objective objective_named(const std::string& name);
double cost_of(const Measurement& measured, Objective objective);

struct SearchOptions {
  Objective objective = Objective::bytes;
  double budget = 0.02;  // the largest Measurement::added that is allowed
};

/// The base with the n rules that gain most per squared error, measured together.
struct FrontierPoint {
  std::vector<std::string> names{};
  double predicted = 0;  // sqrt(sum of the squares of the rules' `added`)
  Measurement measured{};
};

struct Found {
  Measurement base{}, measured{};
  double predicted = 0;  // predicts measured.added
  std::vector<Candidate> candidates{};
  std::vector<FrontierPoint> frontier{};  // at most 16 points, whatever the budget
  std::vector<std::string> chosen{}, dropped{};
  amp::Policy policy{};  // the base with the chosen rules
};

/// Chooses candidates in the order of gain per squared error, as long as the predicted error is
/// within the budget, and measures them together. While the measured error is more than twice the
/// prediction, finds the rule that causes this by bisection and drops it. Then drops rules from
/// the end until the measured error is within the budget, and then rules that save nothing.
Found search(const Trial& trial, const amp::Policy& base, const Measurement& of_base,
             std::vector<Candidate> candidates, const SearchOptions& options,
             std::ostream& progress);

/// Returns a line per candidate, sorted by error, or by the Hessian's score if there are scores;
/// the smallest comes first.
std::string table_of(const std::vector<Candidate>& candidates, const Measurement& base);
/// Returns the base and the candidates as JSON.
std::string json_of(const std::vector<Candidate>& candidates, const Measurement& base);
/// Returns the search result and the frontier as text.
std::string table_of(const Found& found, const SearchOptions& options);
/// Returns the search result as JSON for the report (docs/telemetry.md, search.json).
std::string json_of(const Found& found, const SearchOptions& options);

// Sensitivity of every module to every format of a menu, from one forward and backward per batch:
// each product is repeated locally on quantized operands, and its errors are weighted by the
// gradients of the same pass.
//
// As AutoQuantize of NVIDIA's Model-Optimizer: sum (dL/dy)^2 (dy)^2, with the error dy of a result
// y, is the expected square of the first-order change of the loss, if errors of elements are
// independent.

/// The predictions for one module under one format, over the batches of a trial.
struct OnePassScore {
  std::string path;    // of the module
  std::string format;  // a quantizer's name
  double bits = 0;     // of an element of its operands, with its share of block scales
  double flops = 0;    // of the module's products in one forward pass
  /// Predicts Measurement::loss_moved: the root of the mean over batches of sum (dL/dy)^2 (dy)^2,
  /// divided by the mean size of the loss.
  double loss_change = 0;
  /// Predicts Measurement::added. Its square is the sum of
  ///   the squared error of the weights' gradients, from the replay, over |g|^2
  ///   e(y)^2 |dW of the next module|^2 / |g|^2: its input y has the relative error e(y);
  ///     for the last module e(y)^2
  ///   n sum (dL/dy)^2 (dy)^2 for a mean of n losses: by the Fisher matrix, how other results bend
  ///     the gradients
  ///   0.02 e(y)^2
  /// The constant was fitted to one trial per rule on three workloads.
  double added = 0;
};

/// Returns the scores of each module that has products, under each format: module by module in the
/// order of computation. `sites`: sites_of(base, ...); `formats`: names of quantizers. Throws
/// UsageError for unknown names, unsigned formats, and a workload without products in modules.
std::vector<OnePassScore> one_pass_scores(const Trial& trial, const amp::Policy& base,
                                          const std::vector<policy::ResolvedSite>& sites,
                                          const std::vector<std::string>& formats);

// One format of a menu for each module: the choice within a budget of bits, from scores that add
// up, and its measurement.

struct MenuOption {
  double bits = 0;   // of an element
  double score = 0;  // what the option costs; scores of modules add up
};
struct MenuModule {
  double weight = 0;  // of its bits in the mean
  std::vector<MenuOption> options{};
};

/// Returns for each module the index of an option, such that the mean of the options' bits,
/// weighted by the modules' weights, is at most `bits`. Each module begins with the option of the
/// least score. Until the budget is met, the module whose score rises least per saved bit takes the
/// next shorter option on the convex hull of its options. These are the choices of a Lagrangian
/// relaxation: no other choice with as few bits has a lower score. In the end, modules take better
/// options that still fit. Throws UsageError if the budget is below the mean of the fewest bits.
std::vector<std::size_t> choose_from_menu(const std::vector<MenuModule>& modules, double bits);

/// Returns the mean bits of a choice, weighted as in choose_from_menu().
double mean_bits(const std::vector<MenuModule>& modules, const std::vector<std::size_t>& chosen);

/// The policy that is chosen from a menu for one budget of bits.
struct MenuPoint {
  double budget = 0;          // bits
  double bits = 0;            // chosen: the mean, weighted by floating-point operations
  double predicted = 0;       // predicts measured.added
  double predicted_loss = 0;  // predicts the size of measured.loss_change
  Measurement measured{};
  std::vector<std::string> formats{};  // for each module of the menu
  amp::Policy policy{};                // the base with the chosen rules
};

/// The modules of a workload, each with the rule that gives it each format.
struct Menu {
  std::vector<std::string> formats{};
  std::vector<std::string> paths{};
  std::vector<OnePassScore> scores{};  // module by module, format by format
  /// The rules of each score; an empty list: the base already computes in that format.
  std::vector<std::vector<policy::Rule>> rules{};

  const OnePassScore& score(std::size_t module, std::size_t format) const {
    return scores[module * formats.size() + format];
  }
};

/// Scores every format for every module that has products, from one forward and backward per batch
/// of `trial` under `base` (one_pass_scores()). `example` gives the sites; `formats`: quantizers.
Menu menu_of(const Trial& trial, const amp::Policy& base, const Workload& example,
             const std::vector<std::string>& formats);

/// Returns each rule of the menu as a candidate, which sensitivity() measures alone.
std::vector<Candidate> measured_alone(const Trial& trial, const amp::Policy& base, const Menu& menu,
                                      std::ostream& progress);

/// Chooses and measures a policy for each budget of bits, and for each format a policy in which all
/// modules have that format.
std::vector<MenuPoint> menu_frontier(const Trial& trial, const amp::Policy& base, const Menu& menu,
                                     const std::vector<double>& budgets, std::ostream& progress);

}  // namespace halftone::lab
