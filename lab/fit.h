// Which law do losses follow? Each law is fitted to the runs, and predicts runs that it was not
// fitted to.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include <halftone/lab/fit/law.h>

namespace halftone::lab {

struct FitOptions {
  std::string law = "precision";
  int64_t resamples = 200;   // of the bootstrap
  int64_t simulations = 50;  // for the power; 0: none
  uint64_t seed = 0;
};

/// A 95 % interval of a bootstrap: the middle 95 % of its values.
struct Range {
  double low = 0, high = 0;
};

struct FittedLaw {
  Law law;
  std::vector<double> constants{};
  std::vector<Range> ranges{};        // of the constants
  double error = 0;                   // root mean square of relative errors, of all runs
  double held_out = 0;                // the same, of runs that were left out of the fit
  std::vector<double> held_errors{};  // for each cell the mean square error of its left-out runs
};

/// A comparison of the chosen law with another one.
struct Rival {
  std::string name;
  /// Mean squared error of left-out runs, the chosen law's minus the rival's, over the rival's.
  double difference = 0;
  Range range{};
  /// The share of data sets, drawn from the chosen law with its constants and its error, in which
  /// the chosen law is found better; NaN without simulations.
  double power = 0;
};

struct Fit {
  FittedLaw chosen;
  std::vector<FittedLaw> others{};
  std::vector<Rival> rivals{};  // one for each of the others
  int64_t cells = 0;
  /// 1: the chosen law predicts left-out runs better than every other law; -1: another one predicts
  /// them better; 0: undecided. Intervals at 95 % decide.
  int verdict() const;
};

/// Fits the law and its rivals. Runs with equal parameters, tokens and bits are a *cell*. Each
/// fifth of the cells is left out in turn and predicted by a fit of the others. Intervals are from
/// a bootstrap: of runs for constants, of cells for differences. Throws UsageError for fewer than
/// two runs for each constant.
Fit fit(const std::vector<LawRow>& rows, const FitOptions& options, std::ostream& progress);

/// Writes the table of laws, the constants, and the verdict.
std::string text_of(const Fit& fit, const std::vector<LawRow>& rows);
/// Returns them as JSON.
std::string json_of(const Fit& fit, const std::vector<LawRow>& rows);

}  // namespace halftone::lab
