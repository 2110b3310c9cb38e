// Cross-validation, bootstrap and simulation around fitted().
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

#include <nlohmann/json.hpp>

#include <halftone/core/error.h>
#include <halftone/lab/fit/least_squares.h>
#include <halftone/lab/table.h>

namespace halftone::lab {

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
  using Json = nlohmann::ordered_json;
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
