// The formulas of laws.
#include <halftone/lab/fit/law.h>

#include <algorithm>
#include <cmath>

#include <halftone/core/error.h>

namespace halftone::lab {

namespace {

constexpr std::array<std::string_view, 4> all_names{"tokens", "additive", "precision", "format"};

/// The terms of "tokens", which every law has: A, alpha, B, beta, E.
enum : std::size_t { a, alpha, b, beta, e, first_own };

struct Scales {
  double parameters, tokens;  // geometric means
  double n(const LawRow& row) const { return row.parameters / parameters; }
  double d(const LawRow& row) const { return row.tokens / tokens; }
};

double geometric_mean(std::span<const LawRow> rows, double LawRow::*member) {
  double sum = 0;
  for (const LawRow& row : rows) sum += std::log(row.*member);
  return std::exp(sum / double(rows.size()));
}

double mean_over_roles(const LawRow& row, double OperandFormat::*member) {
  double sum = 0;
  for (const OperandFormat& operand : row.operands) sum += operand.*member;
  return sum / double(operand_roles);
}

Law tokens_law(const Scales& scales, std::span<const LawRow> rows) {
  const double least = std::ranges::min_element(rows, {}, &LawRow::loss)->loss;
  return {.name = "tokens",
          .formula = "A (N/N0)^-alpha + B (D/D0)^-beta + E",
          .source = "Hoffmann et al. 2022, arXiv 2203.15556",
          .names = {"A", "alpha", "B", "beta", "E"},
          .start = {0.2 * least, 0.3, 0.2 * least, 0.3, 0.6 * least},
          .loss = [scales](std::span<const double> p, const LawRow& row) {
            return p[a] * std::pow(scales.n(row), -p[alpha]) +
                   p[b] * std::pow(scales.d(row), -p[beta]) + p[e];
          }};
}

Law precision_law(Law law, const Scales& scales, const std::vector<std::size_t>& roles) {
  law.name = "precision";
  law.formula =
      "A (N f/N0)^-alpha + B (D/D0)^-beta + E, f = product of 1 - exp(-bits / gamma) over roles";
  law.source = "Kumar et al. 2024, arXiv 2411.04330";
  for (const std::size_t role : roles)
    law.names.push_back("gamma " + std::string(operand_role_names[role])), law.start.push_back(2);
  law.loss = [scales, roles](std::span<const double> p, const LawRow& row) {
    double n = scales.n(row);
    for (std::size_t i = 0; i < roles.size(); ++i)
      n *= -std::expm1(-row.operands[roles[i]].bits / p[first_own + i]);
    return p[a] * std::pow(n, -p[alpha]) + p[b] * std::pow(scales.d(row), -p[beta]) + p[e];
  };
  return law;
}

Law additive_law(Law law, const std::vector<std::size_t>& roles) {
  law.name = "additive";
  law.formula = "A (N/N0)^-alpha + B (D/D0)^-beta + E + sum of C exp(-bits / gamma) over roles";
  law.source = "bits cost the same at every size";
  for (const std::size_t role : roles) {
    const std::string name(operand_role_names[role]);
    law.names.insert(law.names.end(), {"C " + name, "gamma " + name});
    law.start.insert(law.start.end(), {1, 2});
  }
  law.loss = [roles, tokens = law.loss](std::span<const double> p, const LawRow& row) {
    double loss = tokens(p, row);
    for (std::size_t i = 0; i < roles.size(); ++i)
      loss +=
          p[first_own + 2 * i] * std::exp(-row.operands[roles[i]].bits / p[first_own + 2 * i + 1]);
    return loss;
  };
  return law;
}

Law format_law(Law law, const Scales& scales) {
  law.name = "format";
  law.formula =
      "A (N/N0)^-alpha + B (D/D0)^-beta + E + (D/D0)^beta (N/N0)^-alpha C log2(2 block) (exponent "
      "+ 0.5)^-delta (fraction + 0.5)^-nu";
  law.source = "Sun et al. 2025, arXiv 2501.02423";
  law.names.insert(law.names.end(), {"C", "delta", "nu"});
  law.start.insert(law.start.end(), {0.1, 1, 1});
  law.loss = [scales, tokens = law.loss](std::span<const double> p, const LawRow& row) {
    const double error =
        p[first_own] * std::log2(2 * mean_over_roles(row, &OperandFormat::block)) *
        std::pow(mean_over_roles(row, &OperandFormat::exponent) + 0.5, -p[first_own + 1]) *
        std::pow(mean_over_roles(row, &OperandFormat::fraction) + 0.5, -p[first_own + 2]);
    return tokens(p, row) +
           std::pow(scales.d(row), p[beta]) * std::pow(scales.n(row), -p[alpha]) * error;
  };
  return law;
}

}  // namespace

std::vector<std::size_t> varied_roles(std::span<const LawRow> rows) {
  std::vector<std::size_t> varied;
  for (std::size_t role = 0; role < operand_roles; ++role)
    if (std::ranges::any_of(rows, [&](const LawRow& row) {
          return row.operands[role].bits != rows.front().operands[role].bits;
        }))
      varied.push_back(role);
  return varied;
}

std::span<const std::string_view> law_names() { return all_names; }

Law law_named(std::string_view name, std::span<const LawRow> rows) {
  for (const LawRow& row : rows)
    for (const double value : {row.parameters, row.tokens, row.loss})
      if (!(value > 0) || !std::isfinite(value))
        fail<UsageError>("fit", "a run has ", row.parameters, " parameters, ", row.tokens,
                         " tokens and the loss ", row.loss,
                         ". Give runs in which all are positive.");
  if (rows.empty()) fail<UsageError>("fit", "got 0 runs. Give folders of runs.");
  const Scales scales{geometric_mean(rows, &LawRow::parameters),
                      geometric_mean(rows, &LawRow::tokens)};
  Law law = tokens_law(scales, rows);
  if (name == "tokens") return law;
  const std::vector<std::size_t> roles = varied_roles(rows);
  if (std::ranges::find(all_names, name) != all_names.end() && roles.empty())
    fail<UsageError>("fit", "the law ", name, " is about bits, and all ", rows.size(),
                     " runs have the same. Give runs under several policies, or --law tokens.");
  if (name == "precision") return precision_law(std::move(law), scales, roles);
  if (name == "additive") return additive_law(std::move(law), roles);
  if (name == "format") return format_law(std::move(law), scales);
  fail_unknown_name("fit", "law", name, all_names);
}

}  // namespace halftone::lab
