// The numbers that a model's products multiply: how many bits they have, and of which kind.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/session.h>

namespace halftone::lab {

/// The mean format of one role (weight, input or grad_output) over a model's products, weighted by
/// the products' floating-point operations. An operand that is not rounded counts as its dtype.
struct OperandFormat {
  double bits = 32;      // per element, including its share of a block's scale
  double exponent = 8;   // bits of the exponent; 0 for integers and tables
  double fraction = 23;  // bits of the fraction
  double block = 1;      // elements that share a scale; 1: no scale, or one of the tensor
};

/// The roles whose formats are recorded, in this order.
inline constexpr std::size_t operand_roles = 3;
inline constexpr std::array<std::string_view, operand_roles> operand_role_names{"weight", "input",
                                                                                "grad_output"};

/// Returns the mean format of each role, in the order of operand_role_names. The session must have
/// run a pass. A product without a parameter has two inputs. A gradient without a quantizer has the
/// dtype of the result. For a model without products, returns f32.
std::array<OperandFormat, operand_roles> operand_formats(const policy::Session& session);

// Laws of the loss: what a training ends with, as a function of the model's parameters, the tokens
// it reads, and the numbers that its products multiply.

/// One training: its size, its final loss, and the formats of its products.
struct LawRow {
  double parameters = 0, tokens = 0, loss = 0;
  std::array<OperandFormat, operand_roles> operands{};
};

/// A formula that predicts the loss of a row from constants. Parameters and tokens are divided by
/// their geometric means over the rows, N0 and D0, so A and B are two terms of the loss at N0 and
/// D0.
struct Law {
  std::string name, formula, source;
  std::vector<std::string> names;  // of its constants, all positive
  std::vector<double> start;       // where a fit begins
  /// Returns the loss that the law predicts for a row.
  std::function<double(std::span<const double> constants, const LawRow& row)> loss;
};

/// Returns the names of the laws that can be compared: "tokens", "additive", "precision", "format".
std::span<const std::string_view> law_names();
/// Returns the indices (in operand_role_names) of the roles whose bits differ between rows.
std::vector<std::size_t> varied_roles(std::span<const LawRow> rows);

/// Returns a law for these rows. The formulas use the bits of varied_roles() only.
///   tokens     A (N/N0)^-alpha + B (D/D0)^-beta + E (Hoffmann et al. 2022, arXiv 2203.15556)
///   precision  the same with N f, f = product over roles of 1 - exp(-P / gamma), P bits (Kumar et
///              al. 2024, arXiv 2411.04330)
///   additive   tokens + sum over roles of C exp(-P / gamma): bits cost the same at every size
///   format     tokens + (D/D0)^beta (N/N0)^-alpha C log2(2 block) (exponent + 0.5)^-delta
///              (fraction + 0.5)^-nu (Sun et al. 2025, arXiv 2501.02423, whose blocks have at
///              least two elements; of the operands' means)
/// Throws UsageError for other names, for no rows, for numbers that are not positive, and, except
/// for "tokens", for rows that all have the same bits.
Law law_named(std::string_view name, std::span<const LawRow> rows);

// Which law do losses follow? Each law is fitted to the runs, and predicts runs that it was not
// fitted to.

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
  double error = 0;                   // root mean square of the relative errors of all runs
  double held_out = 0;                // the same for runs when they were left out of the fit
  std::vector<double> held_errors{};  // for each cell the mean square error of its left-out runs
};

/// Another law, compared with the chosen one.
struct Rival {
  std::string name;
  /// (chosen - rival) / rival, of mean squared errors on left-out runs; below 0: chosen is better.
  double difference = 0;
  Range range{};
  /// The power: data sets are simulated with the chosen law, its constants and its error; this is
  /// the share of them in which the chosen law is found better. NaN without simulations.
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
/// two runs for each constant, 10 cells or 20 resamples, and what law_named() throws.
Fit fit(const std::vector<LawRow>& rows, const FitOptions& options, std::ostream& progress);

/// Returns the table of laws, the constants, and the verdict as text.
std::string text_of(const Fit& fit, const std::vector<LawRow>& rows);
/// Returns the laws, the constants, and the verdict as JSON.
std::string json_of(const Fit& fit, const std::vector<LawRow>& rows);

// The constants of a law that fit rows best.

/// Returns log(law / loss) of a row: the relative error of a law.
double relative_error(const Law& law, std::span<const double> constants, const LawRow& row);

/// Returns the positive constants with the least sum of squared relative errors over the rows, by
/// Levenberg and Marquardt's method on their logarithms, from `start` and, with `thorough`, from
/// four more starting points. Throws UsageError in a build without Eigen, and for fewer rows than
/// constants.
std::vector<double> fitted(const Law& law, std::span<const LawRow> rows,
                           std::span<const double> start, bool thorough = false);

}  // namespace halftone::lab
