// Laws of the loss: what a training ends with, as a function of the model's parameters, the tokens
// it reads, and the numbers that its products multiply.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace halftone::lab {

/// Mean of the formats of one role over a model's products, weighted by their floating-point
/// operations. Unrounded operands count as their dtype.
struct OperandFormat {
  double bits = 32;      // of an element, with its share of a block's scale
  double exponent = 8;   // bits of the exponent; 0 for integers and tables
  double fraction = 23;  // bits of the fraction
  double block = 1;      // elements that share a scale; 1: no scale
};

/// The roles that laws know, in this order: weight, input, grad_output.
inline constexpr std::size_t law_roles = 3;
inline constexpr std::array<std::string_view, law_roles> law_role_names{"weight", "input",
                                                                        "grad_output"};

/// One training.
struct LawRow {
  double parameters = 0, tokens = 0, loss = 0;
  std::array<OperandFormat, law_roles> operands{};
};

/// A law over some rows. Parameters and tokens count relative to their geometric means N0 and D0,
/// so that the constants A and B are the two terms of the loss there.
struct Law {
  std::string name, formula, source;
  std::vector<std::string> names;  // of its constants, all positive
  std::vector<double> start;       // where a fit begins
  /// The loss of a row.
  std::function<double(std::span<const double> constants, const LawRow& row)> loss;
};

/// Returns "tokens", "additive", "precision", "format": the number of laws that can be compared.
std::span<const std::string_view> law_names();
/// Returns a law for these rows; its constants of bits are those of the roles whose bits differ
/// between rows.
///   tokens     A (N/N0)^-alpha + B (D/D0)^-beta + E (Hoffmann et al. 2022, arXiv 2203.15556)
///   precision  the same with N f, f = product over roles of 1 - exp(-P / gamma), P bits (Kumar et
///              al. 2024, arXiv 2411.04330)
///   additive   tokens + sum over roles of C exp(-P / gamma): bits cost the same at every size
///   format     tokens + (D/D0)^beta (N/N0)^-alpha C log2(2 block) (exponent + 0.5)^-delta
///              (fraction + 0.5)^-nu (Sun et al. 2025, arXiv 2501.02423, whose blocks have at
///              least two elements; of the operands' means)
/// Throws UsageError for other names, for rows without a difference of bits (except "tokens"), and
/// for numbers that are not positive.
Law law_named(std::string_view name, std::span<const LawRow> rows);

}  // namespace halftone::lab
