// Laws of the loss: what a training ends with, as a function of the model's parameters, the tokens
// it reads, and the numbers that its products multiply.
#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/lab/operand_formats.h>

namespace halftone::lab {

/// One training.
struct LawRow {
  double parameters = 0, tokens = 0, loss = 0;
  std::array<OperandFormat, operand_roles> operands{};
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
/// Returns the numbers of the roles whose bits differ between rows.
std::vector<std::size_t> varied_roles(std::span<const LawRow> rows);

/// Returns a law for these rows; its constants of bits are those of varied_roles().
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
