// Means over the resolved sites that have floating-point operations.
#include <halftone/core/json_value.h>
#include <halftone/lab/fit.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <numeric>
#include <ostream>
#include <random>
#include <sstream>

#include <halftone/core/error.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

namespace {

OperandFormat format_of(const Quantizer& quantizer) {
  const NumberFormat& grid = quantizer.grid;
  const Scaling& scaling = quantizer.scaling;
  OperandFormat format{.bits = quantizer.bits_per_element()};
  if (quantizer.own) {
    format.block = std::max(1, quantizer.own->columns);
    format.exponent = 0, format.fraction = format.bits - 1;
    return format;
  }
  if (scaling.per == Scaling::Per::block) format.block = double(scaling.rows) * scaling.columns;
  if (!quantizer.table.empty()) {
    format.bits += std::log2(double(quantizer.table.size())) - grid.bits;
    format.exponent = 0, format.fraction = std::log2(double(quantizer.table.size())) - 1;
  } else if (std::ilogb(grid.max) == grid.min_exponent) {  // one exponent: an integer
    format.exponent = 0, format.fraction = grid.bits - 1;
  } else {
    format.fraction = grid.significand_bits - 1;
    format.exponent = grid.bits - 1 - format.fraction;
  }
  return format;
}

OperandFormat format_of(DType dtype) {
  const double bits = 8 * double(size_of(dtype));
  const double fraction = dtype == bf16 ? 7 : dtype == f16 ? 10 : dtype == f64 ? 52 : 23;
  return {.bits = bits, .exponent = bits - 1 - fraction, .fraction = fraction};
}

struct Sum {
  OperandFormat total{0, 0, 0, 0};
  double weight = 0;
  void add(const OperandFormat& format, double by) {
    total.bits += by * format.bits, total.exponent += by * format.exponent;
    total.fraction += by * format.fraction, total.block += by * format.block;
    weight += by;
  }
  OperandFormat mean() const {
    if (weight == 0) return {};
    return {total.bits / weight, total.exponent / weight, total.fraction / weight,
            total.block / weight};
  }
};

}  // namespace

std::array<OperandFormat, operand_roles> operand_formats(const policy::Session& session) {
  std::array<Sum, operand_roles> sums;
  for (const policy::ResolvedSite& site : session.resolved()) {
    if (site.flops <= 0) continue;
    const auto add = [&](policy::Role role, DType dtype, std::size_t input) {
      const Quantizer* const quantizer = site.treatment->quantizer(role, input);
      for (std::size_t i = 0; i < operand_roles; ++i)
        if (operand_role_names[i] == policy::name(role))
          sums[i].add(quantizer ? format_of(*quantizer) : format_of(dtype), site.flops);
    };
    for (std::size_t i = 0; i < site.operands.size() && i < site.roles.size(); ++i)
      if (const auto dtype = site.operands[i]; dtype && is_floating(*dtype))
        add(site.roles[i], *dtype, i);
    if (!site.operands.empty() && site.operands[0] && is_floating(*site.operands[0]))
      add(policy::Role::grad_output, site.treatment->result.value_or(*site.operands[0]), 0);
  }
  return {sums[0].mean(), sums[1].mean(), sums[2].mean()};
}

// Laws and their fits.

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

// Cross-validation, bootstrap and simulation around fitted().

namespace {

using Random = std::mt19937_64;                       // its numbers are the same on every machine
using Cells = std::vector<std::vector<std::size_t>>;  // the runs of each cell

constexpr std::size_t folds = 5;

std::size_t below(Random& random, std::size_t count) { return std::size_t(random() % count); }
double uniform(Random& random) { return (double(random() >> 11) + 0.5) * 0x1p-53; }
double normal(Random& random) {
  const double radius = std::sqrt(-2 * std::log(uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * uniform(random));
}

bool same_cell(const LawRow& x, const LawRow& y) {
  const auto key = [](const LawRow& row) {
    std::vector<double> numbers{row.parameters, row.tokens};
    for (const OperandFormat& o : row.operands)
      numbers.insert(numbers.end(), {o.bits, o.exponent, o.fraction, o.block});
    return numbers;
  };
  return key(x) == key(y);
}

Cells cells_of(const std::vector<LawRow>& rows) {
  Cells cells;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto cell = std::ranges::find_if(
        cells, [&](const auto& runs) { return same_cell(rows[runs.front()], rows[i]); });
    if (cell == cells.end()) cells.push_back({i});
    else cell->push_back(i);
  }
  return cells;
}

/// The fold of each cell: shuffled, so that each fold has cells of all kinds.
std::vector<std::size_t> folds_of(std::size_t cells, Random& random) {
  std::vector<std::size_t> fold(cells);
  for (std::size_t i = 0; i < cells; ++i) fold[i] = i % folds;
  for (std::size_t i = cells; i > 1; --i) std::swap(fold[i - 1], fold[below(random, i)]);
  return fold;
}

/// For each cell the mean square of relative errors, by fits that never saw it.
std::vector<double> held_errors(const Law& law, const std::vector<LawRow>& rows, const Cells& cells,
                                const std::vector<std::size_t>& fold,
                                std::span<const double> start) {
  std::vector<double> errors(cells.size());
  for (std::size_t out = 0; out < folds; ++out) {
    std::vector<LawRow> used;
    for (std::size_t c = 0; c < cells.size(); ++c)
      if (fold[c] != out)
        for (const std::size_t i : cells[c]) used.push_back(rows[i]);
    const std::vector<double> constants = fitted(law, used, start);
    for (std::size_t c = 0; c < cells.size(); ++c) {
      if (fold[c] != out) continue;
      for (const std::size_t i : cells[c])
        errors[c] += std::pow(relative_error(law, constants, rows[i]), 2) / double(cells[c].size());
    }
  }
  return errors;
}

double mean(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / double(x.size());
}

/// The middle 95 % of numbers.
Range range_of(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  const auto at = [&](double share) {
    return numbers[std::size_t(std::lround(share * double(numbers.size() - 1)))];
  };
  return {at(0.025), at(0.975)};
}

/// The chosen law's mean squared error minus the rival's, over the rival's, and its interval from
/// resampled cells.
Rival compared(const std::vector<double>& chosen, const std::vector<double>& rival,
               int64_t resamples, Random& random) {
  Rival result;
  result.difference = (mean(chosen) - mean(rival)) / mean(rival);
  std::vector<double> values;
  for (int64_t n = 0; n < resamples; ++n) {
    double a = 0, b = 0;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const std::size_t c = below(random, chosen.size());
      a += chosen[c], b += rival[c];
    }
    values.push_back((a - b) / b);
  }
  result.range = range_of(std::move(values));
  return result;
}

/// Fits a law to all rows, without intervals.
FittedLaw fitted_law(Law law, const std::vector<LawRow>& rows, const Cells& cells,
                     const std::vector<std::size_t>& fold) {
  FittedLaw result{.law = std::move(law)};
  result.constants = fitted(result.law, rows, result.law.start, true);
  double squares = 0;
  for (const LawRow& row : rows)
    squares += std::pow(relative_error(result.law, result.constants, row), 2);
  result.error = std::sqrt(squares / double(rows.size()));
  result.held_errors = held_errors(result.law, rows, cells, fold, result.constants);
  result.held_out = std::sqrt(mean(result.held_errors));
  return result;
}

/// The constants' intervals, from fits to resampled runs.
std::vector<Range> ranges_of(const FittedLaw& law, const std::vector<LawRow>& rows,
                             int64_t resamples, Random& random) {
  std::vector<std::vector<double>> values(law.constants.size());
  for (int64_t n = 0; n < resamples; ++n) {
    std::vector<LawRow> drawn;
    for (std::size_t i = 0; i < rows.size(); ++i) drawn.push_back(rows[below(random, rows.size())]);
    const std::vector<double> constants = fitted(law.law, drawn, law.constants);
    for (std::size_t i = 0; i < values.size(); ++i) values[i].push_back(constants[i]);
  }
  std::vector<Range> ranges;
  for (auto& numbers : values) ranges.push_back(range_of(std::move(numbers)));
  return ranges;
}

/// The share of simulated data sets in which the chosen law is found better than each rival.
void add_power(Fit& fit, std::vector<LawRow> rows, const Cells& cells,
               const std::vector<std::size_t>& fold, const FitOptions& options, Random& random) {
  std::vector<double> expected;
  for (const LawRow& row : rows) expected.push_back(fit.chosen.law.loss(fit.chosen.constants, row));
  const double noise = fit.chosen.error;
  for (Rival& rival : fit.rivals) rival.power = 0;
  for (int64_t n = 0; n < options.simulations; ++n) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      rows[i].loss = expected[i] * std::exp(noise * normal(random));
    const std::vector<double> chosen =
        held_errors(fit.chosen.law, rows, cells, fold, fit.chosen.constants);
    for (std::size_t r = 0; r < fit.rivals.size(); ++r) {
      const FittedLaw& other = fit.others[r];
      const std::vector<double> errors =
          held_errors(other.law, rows, cells, fold, fitted(other.law, rows, other.constants));
      if (compared(chosen, errors, options.resamples, random).range.high < 0)
        fit.rivals[r].power += 1 / double(options.simulations);
    }
  }
}

std::string percent_of(const Range& range) {
  return "[" + fixed(100 * range.low, 0) + ", " + fixed(100 * range.high, 0) + "] %";
}

}  // namespace

int Fit::verdict() const {
  const auto all = [&](auto holds) { return std::ranges::all_of(rivals, holds); };
  if (!rivals.empty() && all([](const Rival& r) { return r.range.high < 0; })) return 1;
  return all([](const Rival& r) { return r.range.low <= 0; }) ? 0 : -1;
}

Fit fit(const std::vector<LawRow>& rows, const FitOptions& options, std::ostream& progress) {
  if (options.resamples < 20 || options.simulations < 0)
    fail<UsageError>("fit", options.resamples, " resamples, ", options.simulations,
                     " simulations. Use at least 20 and 0.");
  Law law = law_named(options.law, rows);
  if (rows.size() < 2 * law.names.size())
    fail<UsageError>("fit", "the law ", law.name, " has ", law.names.size(), " constants, and ",
                     rows.size(), " runs are given. Give at least ", 2 * law.names.size(), ".");
  Random random(options.seed);
  const Cells cells = cells_of(rows);
  if (cells.size() < 2 * folds)
    fail<UsageError>("fit", "the ", rows.size(), " runs have ", cells.size(),
                     " different combinations of parameters, tokens and bits. Give at least ",
                     2 * folds, ".");
  const std::vector<std::size_t> fold = folds_of(cells.size(), random);
  progress << rows.size() << " runs in " << cells.size() << " cells" << std::endl;
  Fit result{.chosen = fitted_law(std::move(law), rows, cells, fold), .cells = std::ssize(cells)};
  result.chosen.ranges = ranges_of(result.chosen, rows, options.resamples, random);
  const bool bits_differ = !varied_roles(rows).empty();
  for (const std::string_view name : law_names()) {
    if (name == options.law || (name != "tokens" && !bits_differ)) continue;
    Law other = law_named(name, rows);
    if (rows.size() < 2 * other.names.size()) continue;
    result.others.push_back(fitted_law(std::move(other), rows, cells, fold));
    result.rivals.push_back(compared(result.chosen.held_errors, result.others.back().held_errors,
                                     options.resamples, random));
    result.rivals.back().name = name;
    result.rivals.back().power = std::numeric_limits<double>::quiet_NaN();
  }
  if (options.simulations > 0) add_power(result, rows, cells, fold, options, random);
  return result;
}

std::string text_of(const Fit& fit, const std::vector<LawRow>& rows) {
  std::ostringstream text;
  Table laws({"law", "constants", "error", "of left-out runs", fit.chosen.law.name + " against it",
              "power"});
  const auto row_of = [&](const FittedLaw& law, const Rival* rival) {
    laws.row({law.law.name, std::to_string(law.law.names.size()), fixed(100 * law.error, 2) + " %",
              fixed(100 * law.held_out, 2) + " %",
              rival ? fixed(100 * rival->difference, 0) + " % " + percent_of(rival->range) : "",
              rival && !std::isnan(rival->power) ? percent(rival->power) : ""});
  };
  row_of(fit.chosen, nullptr);
  for (std::size_t i = 0; i < fit.others.size(); ++i) row_of(fit.others[i], &fit.rivals[i]);
  text << laws << '\n' << fit.chosen.law.name << ": loss = " << fit.chosen.law.formula << '\n';
  Table constants({"constant", "value", "95 %"});
  for (std::size_t i = 0; i < fit.chosen.constants.size(); ++i)
    constants.row({fit.chosen.law.names[i], number(fit.chosen.constants[i], 3),
                   "[" + number(fit.chosen.ranges[i].low, 3) + ", " +
                       number(fit.chosen.ranges[i].high, 3) + "]"});
  text << constants;
  const auto mean_of = [&](double LawRow::*member) {
    double sum = 0;
    for (const LawRow& row : rows) sum += std::log(row.*member);
    return number(std::exp(sum / double(rows.size())));
  };
  text << "N0 = " << mean_of(&LawRow::parameters)
       << " parameters, D0 = " << mean_of(&LawRow::tokens) << " tokens\n\n";
  constexpr const char* verdicts[]{"another law predicts left-out runs better",
                                   "undecided: no other law predicts left-out runs better",
                                   "it predicts left-out runs better than every other law"};
  text << fit.chosen.law.name << " (" << fit.chosen.law.source
       << "): " << verdicts[fit.verdict() + 1] << '\n';
  return text.str();
}

std::string json_of(const Fit& fit, const std::vector<LawRow>& rows) {
  const auto law_of = [](const FittedLaw& law) {
    Json constants = Json::object();
    for (std::size_t i = 0; i < law.constants.size(); ++i) {
      Json& constant = constants[law.law.names[i]] = {{"value", law.constants[i]}};
      if (!law.ranges.empty())
        constant["low"] = law.ranges[i].low, constant["high"] = law.ranges[i].high;
    }
    return Json{{"law", law.law.name},      {"formula", law.law.formula},
                {"source", law.law.source}, {"error", law.error},
                {"held_out", law.held_out}, {"constants", std::move(constants)}};
  };
  Json others = Json::array();
  for (std::size_t i = 0; i < fit.others.size(); ++i) {
    Json other = law_of(fit.others[i]);
    const Rival& rival = fit.rivals[i];
    other["against"] = {{"difference", rival.difference},
                        {"low", rival.range.low},
                        {"high", rival.range.high},
                        {"power", std::isnan(rival.power) ? Json() : Json(rival.power)}};
    others.push_back(std::move(other));
  }
  return Json{{"format", 1},
              {"runs", rows.size()},
              {"cells", fit.cells},
              {"verdict", fit.verdict()},
              {"chosen", law_of(fit.chosen)},
              {"others", std::move(others)}}
             .dump(1) +
         "\n";
}

}  // namespace halftone::lab

// Eigen's Levenberg-Marquardt, which is MINPACK's. The only file that knows Eigen.

#if defined(HALFTONE_HAVE_EIGEN)
#include <unsupported/Eigen/NonLinearOptimization>
#include <unsupported/Eigen/NumericalDiff>
#endif

namespace halftone::lab {

double relative_error(const Law& law, std::span<const double> constants, const LawRow& row) {
  return std::log(law.loss(constants, row) / row.loss);
}

#if defined(HALFTONE_HAVE_EIGEN)
namespace {

/// The errors of all rows as a function of the logarithms of the constants, as Eigen calls it.
struct Errors {
  using Scalar = double;
  using InputType = Eigen::VectorXd;
  using ValueType = Eigen::VectorXd;
  using JacobianType = Eigen::MatrixXd;
  enum { InputsAtCompileTime = Eigen::Dynamic, ValuesAtCompileTime = Eigen::Dynamic };

  const Law& law;
  std::span<const LawRow> rows;

  int inputs() const { return int(law.names.size()); }
  int values() const { return int(rows.size()); }
  int operator()(const InputType& logs, ValueType& errors) const {
    const std::vector<double> constants = constants_of(logs);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const double error = relative_error(law, constants, rows[i]);
      errors[Eigen::Index(i)] = std::isfinite(error) ? error : 1e3;
    }
    return 0;
  }
  static std::vector<double> constants_of(const InputType& logs) {
    std::vector<double> constants;
    for (const double x : logs) constants.push_back(std::exp(std::clamp(x, -30.0, 30.0)));
    return constants;
  }
};

}  // namespace

std::vector<double> fitted(const Law& law, std::span<const LawRow> rows,
                           std::span<const double> start, bool thorough) {
  if (rows.size() < law.names.size())
    fail<UsageError>("fit", "the law ", law.name, " has ", law.names.size(),
                     " constants, got only ", rows.size(), " runs. Give more runs.");
  Eigen::VectorXd best;
  double least = std::numeric_limits<double>::infinity();
  // Exponents and gammas may be several times smaller or larger than their starting values.
  for (const double factor : {1.0, 0.3, 3.0, 0.1, 6.0}) {
    Eigen::VectorXd logs(Eigen::Index(law.names.size()));
    for (std::size_t i = 0; i < start.size(); ++i)
      logs[Eigen::Index(i)] = std::log(start[i] * (i % 2 == 1 ? factor : 1.0));
    Eigen::NumericalDiff<Errors> errors(Errors{law, rows});
    Eigen::LevenbergMarquardt<Eigen::NumericalDiff<Errors>> method(errors);
    method.parameters.maxfev = 2000;
    method.minimize(logs);
    if (method.fnorm < least) least = method.fnorm, best = logs;
    if (!thorough) break;
  }
  return Errors::constants_of(best);
}
#else
std::vector<double> fitted(const Law&, std::span<const LawRow>, std::span<const double>, bool) {
  fail<UsageError>("fit", "this build has no Eigen. Install libeigen3-dev, and configure again.");
}
#endif

}  // namespace halftone::lab
