// One format of a menu for each module: the choice within a budget of bits, from scores that add
// up, and its measurement.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include <halftone/lab/menu/one_pass.h>
#include <halftone/lab/search.h>

namespace halftone::lab {

struct MenuOption {
  double bits = 0;   // of an element
  double score = 0;  // what the option costs; scores of modules add up
};
struct MenuModule {
  double weight = 0;  // of its bits in the mean
  std::vector<MenuOption> options{};
};

/// Returns the number of an option for each module, so that the mean of the bits, weighted by the
/// modules' weights, is at most `bits`. Each module begins with its least score; then the module
/// that loses least per saved bit takes its next cheaper option, along the convex hull of its
/// options. These are the choices of a Lagrangian relaxation: without an option in between, no
/// other choice of as many bits has a lower score. In the end modules take better options that
/// still fit. Throws UsageError if the budget is below the mean of the fewest bits.
std::vector<std::size_t> choose_from_menu(const std::vector<MenuModule>& modules, double bits);

/// Returns the mean bits of a choice.
double mean_bits(const std::vector<MenuModule>& modules, const std::vector<std::size_t>& chosen);

/// A choice for one budget.
struct MenuPoint {
  double budget = 0;          // bits
  double bits = 0;            // chosen: the mean, weighted by floating-point operations
  double predicted = 0;       // of measured.added
  double predicted_loss = 0;  // of measured.loss_change, by magnitude
  Measurement measured{};
  std::vector<std::string> formats{};  // for each module
  policy::PolicyFile policy{};         // the base with the chosen rules
};

/// The modules of a workload, each with the rule that gives it each format.
struct Menu {
  std::vector<std::string> formats{};
  std::vector<std::string> paths{};
  std::vector<OnePassScore> scores{};  // module by module, format by format
  /// For each score; empty: the base already computes in that format.
  std::vector<std::vector<policy::Rule>> rules{};

  const OnePassScore& score(std::size_t module, std::size_t format) const {
    return scores[module * formats.size() + format];
  }
};

/// Scores each module with products under each format by one pass, on top of `base`.
Menu menu_of(const Trial& trial, const policy::PolicyFile& base, const Workload& example,
             const std::vector<std::string>& formats);

/// Returns each rule as a candidate, measured alone as sensitivity() does.
std::vector<Candidate> measured_alone(const Trial& trial, const policy::PolicyFile& base,
                                      const Menu& menu, std::ostream& progress);

/// Chooses and measures a policy for each budget of bits, and one format for all modules for each
/// format.
std::vector<MenuPoint> menu_frontier(const Trial& trial, const policy::PolicyFile& base,
                                     const Menu& menu, const std::vector<double>& budgets,
                                     std::ostream& progress);

}  // namespace halftone::lab
