// Laws of the loss: planted constants are found again, planted laws are told apart, and bad input
// is refused.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/halftone.h>
#include <halftone/lab/experiments/experiments.h>
#include <halftone/lab/fit.h>
#include <halftone/lab/gate.h>
#include <halftone/lab/run.h>
#include <halftone/lab/search.h>
#include <halftone/lab/table.h>

#include "support.h"

namespace halftone::test::fit_test {
namespace {

using lab::FitOptions;
using lab::LawRow;

lab::OperandFormat integer(double bits) { return {bits, 0, bits - 1, 1}; }

/// Runs of four sizes, three lengths, and five pairs of bits.
std::vector<LawRow> grid() {
  std::vector<LawRow> rows;
  for (const double n : {1e5, 3e5, 1e6, 3e6})
    for (const double d : {5e4, 1e5, 2e5})
      for (const auto& [w, x] : {std::pair{16., 16.}, {3., 16.}, {16., 3.}, {4., 4.}, {2., 4.}})
        rows.push_back(
            {.parameters = n, .tokens = d, .loss = 1, .operands = {integer(w), integer(x), {}}});
  return rows;
}

/// The same rows with losses of a law, and relative errors of `noise` from a fixed sequence.
std::vector<LawRow> planted(const std::string& law, const std::vector<double>& constants,
                            double noise) {
  std::vector<LawRow> rows = grid();
  const lab::Law formula = lab::law_named(law, rows);
  REQUIRE(formula.names.size() == constants.size());
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i].loss = formula.loss(constants, rows[i]) * (1 + noise * std::sin(double(7 * i * i + i)));
  return rows;
}

const std::vector<double> precision_constants{0.6, 0.35, 0.4, 0.45, 1.5, 2.5, 1.2};

TEST_CASE("a fit finds the constants of every law") {
  const auto check = [](const std::string& name, const std::vector<double>& constants) {
    const std::vector<LawRow> rows = planted(name, constants, 0);
    const lab::Law law = lab::law_named(name, rows);
    const std::vector<double> found = lab::fitted(law, rows, law.start, true);
    for (std::size_t i = 0; i < constants.size(); ++i)
      CHECK_MESSAGE(found[i] == doctest::Approx(constants[i]).epsilon(1e-3), name, law.names[i]);
  };
  check("tokens", {0.6, 0.35, 0.4, 0.45, 1.5});
  check("precision", precision_constants);
  check("additive", {0.6, 0.35, 0.4, 0.45, 1.5, 1.3, 2.5, 0.7, 1.2});
}

TEST_CASE("the planted law predicts left-out runs best, and its rivals do not") {
  std::ostringstream progress;
  const FitOptions options{.resamples = 40, .simulations = 3};
  const std::vector<LawRow> rows = planted("precision", precision_constants, 0.003);
  const lab::Fit right = lab::fit(rows, options, progress);
  CHECK(progress.str() == "60 runs in 60 cells\n");
  CHECK(right.verdict() == 1);
  CHECK(right.chosen.held_out < 0.01);
  REQUIRE(right.rivals.size() == 3);
  for (const lab::Rival& rival : right.rivals)
    CHECK_MESSAGE(rival.power > 0.6, rival.name);  // the simulated noise is that of the runs
  for (std::size_t i = 0; i < precision_constants.size(); ++i)
    CHECK(right.chosen.ranges[i].low <= right.chosen.ranges[i].high);

  const lab::Fit wrong =
      lab::fit(rows, {.law = "additive", .resamples = 40, .simulations = 0}, progress);
  CHECK(wrong.verdict() == -1);
  CHECK(std::isnan(wrong.rivals[0].power));
  CHECK(lab::text_of(wrong, rows).find("another law predicts left-out runs better") !=
        std::string::npos);
  const auto json = nlohmann::json::parse(lab::json_of(right, rows));
  CHECK(json["verdict"] == 1);
  CHECK(json["chosen"]["constants"]["gamma weight"]["value"].get<double>() ==
        doctest::Approx(2.5).epsilon(0.1));
}

TEST_CASE("the same runs and seed give the same text") {
  std::ostringstream progress;
  const std::vector<LawRow> rows = planted("precision", precision_constants, 0.01);
  const FitOptions options{.resamples = 20, .simulations = 1};
  CHECK(lab::text_of(lab::fit(rows, options, progress), rows) ==
        lab::text_of(lab::fit(rows, options, progress), rows));
}

TEST_CASE("a fit refuses runs that cannot be fitted") {
  std::ostringstream progress;
  const auto refusal = [&](std::vector<LawRow> rows, const std::string& law = "precision") {
    return message_of<UsageError>([&] { lab::fit(rows, {.law = law}, progress); });
  };
  CHECK(refusal({}) == "[fit] got 0 runs. Give folders of runs.");
  std::vector<LawRow> rows = grid();
  CHECK(refusal(rows, "precison") ==
        "[fit] there is no law named \"precison\". Did you mean \"precision\"?");
  CHECK(refusal({rows.begin(), rows.begin() + 10}) ==
        "[fit] the law precision has 7 constants, and 10 runs are given. Give at least 14.");
  std::vector<LawRow> few(60, rows[0]);
  for (std::size_t i = 0; i < 30; ++i) few[i] = rows[1];
  CHECK(refusal(few) ==
        "[fit] the 60 runs have 2 different combinations of parameters, tokens and "
        "bits. Give at least 10.");
  for (LawRow& row : rows) row.operands = {};
  CHECK(refusal(rows) ==
        "[fit] the law precision is about bits, and all 60 runs have the same. "
        "Give runs under several policies, or --law tokens.");
  for (const double wrong : {0., -1., double(INFINITY), double(NAN)}) {
    rows = grid(), rows[3].loss = wrong;
    CHECK(refusal(rows).find("Give runs in which all are positive") != std::string::npos);
  }
}

TEST_CASE("a run records its parameters, tokens and the formats of its operands") {
  const TemporaryDirectory folder;
  write_file(folder / "p.json", R"({"halftone_policy": 1, "name": "p", "extends": "fp32",
    "quantizers": {"i4": {"format": "int4", "scale": {"per": "block", "block": [1, 16],
    "format": "f32"}}},
    "rules": [{"match": {"op": "linear"}, "weight": "i4", "input": "e4m3"}]})");
  std::ostringstream progress;
  const auto runs =
      lab::run({.cells = lab::read_cells({(folder / "p.json").string(), "amp-bf16"},
                                         {.workload = "student_teacher", .steps = 3})},
               {}, progress);
  const auto summary = nlohmann::json::parse(runs[0].summary);
  CHECK(summary["parameters"] == 32 * 128 + 128 + 128 * 8 + 8);
  CHECK(summary["tokens"] == 3 * 64);
  const auto& operands = summary["operands"];
  CHECK(operands["weight_bits"] == 6);  // 4, and a sixteenth of the scale
  CHECK(operands["weight_exponent"] == 0);
  CHECK(operands["weight_fraction"] == 3);
  CHECK(operands["weight_block"] == 16);
  CHECK(operands["input_bits"] == 8);
  CHECK(operands["input_exponent"] == 4);
  CHECK(operands["input_fraction"] == 3);
  CHECK(operands["grad_output_bits"] == 32);
  const auto native = nlohmann::json::parse(runs[1].summary)["operands"];
  CHECK(native["weight_bits"] == 16);
  CHECK(native["input_fraction"] == 7);
  CHECK(native["grad_output_exponent"] == 8);
}

}  // namespace
}  // namespace halftone::test::fit_test

// One format of a menu for each module: the choice within a budget against all choices, scores of
// one pass against a trial for each rule, and policies that run.

namespace halftone::test::menu_test {
namespace {

using lab::MenuModule;
using Choice = std::vector<std::size_t>;

double score_of(const std::vector<MenuModule>& modules, const Choice& chosen) {
  double sum = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) sum += modules[i].options[chosen[i]].score;
  return sum;
}

/// Returns the least score of all choices within a budget.
double least_score(const std::vector<MenuModule>& modules, double bits) {
  double least = HUGE_VAL;
  Choice choice(modules.size());
  for (;;) {
    if (lab::mean_bits(modules, choice) <= bits + 1e-9)
      least = std::min(least, score_of(modules, choice));
    std::size_t i = 0;
    while (i < choice.size() && ++choice[i] == modules[i].options.size()) choice[i++] = 0;
    if (i == choice.size()) return least;
  }
}

TEST_CASE("a choice by hand") {
  // The second module is three times as sensitive, the third has three times the weight.
  const std::vector<MenuModule> modules{{1, {{16, 0}, {8, 1}, {4, 16}}},
                                        {1, {{16, 0}, {8, 3}, {4, 48}}},
                                        {3, {{16, 0}, {8, 1}, {4, 16}}}};
  CHECK(lab::choose_from_menu(modules, 16) == Choice{0, 0, 0});
  CHECK(lab::choose_from_menu(modules, 12) == Choice{0, 0, 1});  // 11.2; 24 of 80 bits saved
  CHECK(lab::choose_from_menu(modules, 9.6) == Choice{1, 0, 1});
  CHECK(lab::choose_from_menu(modules, 8) == Choice{1, 1, 1});
  CHECK(lab::choose_from_menu(modules, 5.6) == Choice{1, 1, 2});
  CHECK(lab::choose_from_menu(modules, 4) == Choice{2, 2, 2});
  CHECK_THROWS_WITH_AS(lab::choose_from_menu(modules, 3.9),
                       doctest::Contains("the menu's fewest are 4"), UsageError);
  // An option that costs more bits and loses more is never taken.
  CHECK(lab::choose_from_menu({{1, {{8, 2}, {6, 1}, {4, 3}}}}, 16) == Choice{1});
}

TEST_CASE("choices are within the budget, and no worse than all others by more than one module") {
  manual_seed(11);
  int exact = 0, cases = 0;
  for (int round = 0; round < 40; ++round) {
    std::vector<MenuModule> modules;
    double step = 0;
    for (int i = 0; i < 6; ++i) {
      const auto draw = rand({4}).to_vector<double>();
      MenuModule module{.weight = 0.2 + draw[0]};
      for (const double bits : {16.0, 8.25, 6.0, 4.25})
        module.options.push_back(
            {bits, std::exp2(-bits) * (1 + 100 * draw[1]) * (bits == 6 ? 0.5 + draw[2] : 1)});
      step = std::max(step, module.options[3].score);
      modules.push_back(module);
    }
    for (const double bits : {4.5, 6.0, 8.0, 12.0}) {
      const Choice chosen = lab::choose_from_menu(modules, bits);
      CHECK(lab::mean_bits(modules, chosen) <= bits + 1e-9);
      const double least = least_score(modules, bits), found = score_of(modules, chosen);
      CHECK(found >= least);
      CHECK(found <= least + step);
      ++cases, exact += found <= least * (1 + 1e-12);
    }
  }
  CHECK(exact > cases / 4);
}

lab::Workload small_gpt() {
  manual_seed(3);
  auto model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
      .vocabulary = 23, .context = 16, .layers = 2, .heads = 2, .width = 32});
  const Tensor x = randint(0, 23, {32, 16}), y = randint(0, 23, {32, 16});
  return {.task = train::language_modeling(*model), .model = std::move(model), .train = [x, y] {
            return data::DataLoader(data::TensorDataset(x, y), {.batch_size = 8});
          }};
}

struct Fixture {
  amp::Policy base = amp::Policy::named("fp32");
  lab::Trial trial{small_gpt, amp::Policy::named("fp32"), {.batches = 2, .warm_up = 5}};
  lab::Menu menu;
  std::ostringstream progress{};
  explicit Fixture(const std::vector<std::string>& formats)
      : menu((trial.set_base(base), lab::menu_of(trial, base, small_gpt(), formats))) {}
};

TEST_CASE("scores of one pass rank rules as one trial each does") {
  Fixture f({"mxfp8", "mxfp6", "mxfp4", "nvfp4"});
  REQUIRE(f.menu.paths.size() == 9);
  const auto alone = lab::measured_alone(f.trial, f.base, f.menu, f.progress);
  REQUIRE(alone.size() == 36);
  std::vector<double> scores, added, by_loss, moved;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    CHECK(alone[i].refused == "");
    CHECK(alone[i].rule.name == f.menu.scores[i].path + " -> " + f.menu.scores[i].format);
    scores.push_back(f.menu.scores[i].added), added.push_back(alone[i].measured.added);
    by_loss.push_back(f.menu.scores[i].loss_change);
    moved.push_back(alone[i].measured.loss_moved);
  }
  const double rank = lab::spearman(scores, added);
  MESSAGE("Spearman's rank correlation: ", rank, ", of the loss ", lab::spearman(by_loss, moved));
  CHECK(rank > 0.9);
}

TEST_CASE("points of a frontier are policies that keep their budget") {
  Fixture f({"bf16", "mxfp8", "mxfp4"});
  const auto points = lab::menu_frontier(f.trial, f.base, f.menu, {5, 8, 12}, f.progress);
  REQUIRE(points.size() == 6);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const lab::MenuPoint& point = points[i];
    CAPTURE(i);
    if (i < 3) CHECK(point.bits <= point.budget);
    CHECK(point.measured.bits == doctest::Approx(point.bits));
    CHECK(point.measured.added < 2 * point.predicted);
    CHECK(point.measured.added > 0.5 * point.predicted);
    CHECK(policy::read_text(policy::write(point.policy)).name == point.policy.name);
  }
  CHECK(points[0].measured.added > points[1].measured.added);
  CHECK(points[1].measured.added > points[2].measured.added);
  CHECK(points[0].measured.added < points[5].measured.added);  // mxfp4 for all
}

}  // namespace
}  // namespace halftone::test::menu_test

// Medians and Student's intervals, against values from tables and a plain integration of Student's
// density.

namespace halftone::test::statistics_test {
namespace {

using lab::Interval;
using lab::interval_of;
using lab::median;

/// Returns the probability that |T| < t for Student's T with n degrees of freedom: Simpson's rule
/// over the density Gamma((n + 1) / 2) / (sqrt(n pi) Gamma(n / 2)) (1 + x^2 / n)^(-(n + 1) / 2).
double probability_within(double t, double n) {
  const double scale =
      std::exp(std::lgamma((n + 1) / 2) - std::lgamma(n / 2)) / std::sqrt(n * std::acos(-1.0));
  const auto density = [&](double x) { return scale * std::pow(1 + x * x / n, -(n + 1) / 2); };
  constexpr int pieces = 20000;
  const double width = t / pieces;
  double sum = density(0) + density(t);
  for (int i = 1; i < pieces; ++i) sum += density(i * width) * (i % 2 == 1 ? 4 : 2);
  return 2 * sum * width / 3;
}

/// n numbers with mean 0 and sum of squares n - 1, so that their standard error is 1 / sqrt(n).
std::vector<double> with_unit_variance(int n) {
  std::vector<double> numbers(std::size_t(n), 0.0);
  const double half = std::sqrt((n - 1) / 2.0);
  numbers[0] = half, numbers[1] = -half;
  return numbers;
}

/// The quantile that interval_of() uses for n numbers.
double quantile_for(int n) {
  return interval_of(with_unit_variance(n)).half * std::sqrt(double(n));
}

TEST_CASE("rank correlations by hand") {
  CHECK(lab::spearman({1, 2, 3}, {10, 20, 15}) == doctest::Approx(0.5));
  CHECK(lab::spearman({1, 2, 3, 4}, {4, 3, 2, 1}) == doctest::Approx(-1));
  // Ties take mean ranks: 0.5, 0.5, 2 against 0, 1, 2.
  CHECK(lab::spearman({1, 1, 7}, {1, 2, 3}) == doctest::Approx(1.5 / std::sqrt(1.5 * 2)));
  CHECK(std::isnan(lab::spearman({1}, {2})));
}

TEST_CASE("medians of odd and even counts, in any order") {
  CHECK(median({5}) == 5);
  CHECK(median({1, 3}) == 2);
  CHECK(median({9, 1, 4}) == 4);
  CHECK(median({4, 1, 3, 2}) == 2.5);
  CHECK(median({-1, -1, -1, 100}) == -1);
  CHECK(median({7, 7, 7}) == 7);
  CHECK(std::isnan(median({})));
}

TEST_CASE("a median does not depend on the order, and one outlier does not move it far") {
  std::vector<double> numbers;
  for (int i = 0; i < 101; ++i) numbers.push_back(i);
  std::mt19937 random(1);
  for (int i = 0; i < 10; ++i) {
    std::ranges::shuffle(numbers, random);
    CHECK(median(numbers) == 50);
  }
  *std::ranges::max_element(numbers) = 1e300;
  CHECK(median(numbers) == 50);
  CHECK(median({1, 2, std::numeric_limits<double>::infinity()}) == 2);
}

TEST_CASE("intervals by hand: the mean, and t s / sqrt(n)") {
  const Interval two = interval_of({1, 3});  // s = sqrt(2), n = 2: 12.706 sqrt(2) / sqrt(2)
  CHECK(two.mean == 2);
  CHECK(two.half == doctest::Approx(12.7062));
  const Interval three = interval_of({1, 2, 3});  // s = 1, n = 3
  CHECK(three.mean == 2);
  CHECK(three.half == doctest::Approx(4.30265 / std::sqrt(3.0)));
  const Interval five = interval_of({2, 4, 4, 6, 9});  // mean 5, squares 9 + 1 + 1 + 1 + 16 = 28
  CHECK(five.mean == 5);
  CHECK(five.half == doctest::Approx(2.77645 * std::sqrt(28.0 / 4 / 5)));
}

TEST_CASE("fewer than two numbers have no interval, equal ones an empty one") {
  CHECK(interval_of({3}).mean == 3);
  CHECK(std::isinf(interval_of({3}).half));
  CHECK(std::isnan(interval_of({}).mean));
  CHECK(std::isinf(interval_of({}).half));
  CHECK(interval_of({4, 4, 4, 4}).half == 0);
  CHECK(interval_of({4, 4, 4, 4}).mean == 4);
  CHECK(std::isnan(interval_of({1, std::nan("")}).mean));
}

TEST_CASE("quantiles are those of a printed table") {
  // 0.975 quantiles: NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
  const std::pair<int, double> table[] = {{1, 12.706}, {2, 4.303},  {3, 3.182},  {4, 2.776},
                                          {5, 2.571},  {9, 2.262},  {14, 2.145}, {19, 2.093},
                                          {24, 2.064}, {29, 2.045}, {30, 2.042}, {31, 2.040},
                                          {40, 2.021}, {60, 2.000}, {100, 1.984}};
  for (const auto& [freedom, t] : table) {
    CAPTURE(freedom);
    CHECK(quantile_for(freedom + 1) == doctest::Approx(t).epsilon(3e-4));
  }
}

TEST_CASE("95 % of Student's distribution are within each quantile") {
  CHECK(probability_within(1, 1) == doctest::Approx(0.5));  // Cauchy's quartile
  CHECK(probability_within(1.96, 1e6) == doctest::Approx(0.95).epsilon(1e-4));
  for (int freedom = 1; freedom <= 200; freedom += freedom < 40 ? 1 : 20) {
    CAPTURE(freedom);
    CHECK(probability_within(quantile_for(freedom + 1), freedom) ==
          doctest::Approx(0.95).epsilon(1.5e-4));
  }
}

TEST_CASE("quantiles fall with the degrees of freedom, also where the table ends") {
  for (int n = 3; n < 60; ++n) {
    CAPTURE(n);
    CHECK(quantile_for(n) < quantile_for(n - 1));
  }
}

TEST_CASE("an interval shifts and scales with its numbers") {
  const std::vector<double> numbers{0.5, 1.25, -3, 2, 8, 1};
  const Interval plain = interval_of(numbers);
  std::vector<double> others = numbers;
  for (double& x : others) x = 10 - 4 * x;
  const Interval other = interval_of(others);
  CHECK(other.mean == doctest::Approx(10 - 4 * plain.mean));
  CHECK(other.half == doctest::Approx(4 * plain.half));
}

TEST_CASE("19 of 20 intervals hold the mean of the distribution") {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(2, 5);
  int inside = 0;
  constexpr int trials = 4000;
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> numbers;
    for (int i = 0; i < 3 + trial % 6; ++i) numbers.push_back(normal(random));
    const Interval interval = interval_of(numbers);
    inside += std::abs(interval.mean - 2) <= interval.half;
  }
  // 3800 on average, with a standard deviation of sqrt(4000 * 0.95 * 0.05) = 13.8.
  CHECK(inside > 3800 - 70);
  CHECK(inside < 3800 + 70);
}

}  // namespace
}  // namespace halftone::test::statistics_test

// Checks of experiments: a check that misses is counted and shown, NaN misses every limit.

namespace halftone::test::findings_test {
namespace {

TEST_CASE("a check says value and bar, and counts if it misses") {
  std::ostringstream text;
  lab::Findings found(text);
  found.within("share", 0.5, 0.25, 0.75);
  found.at_least("share", 0.125, 0.25);
  found.equal("hash", "00ff", "00ff");
  found.different("hash", "00ff", "00ff");
  CHECK(text.str() ==
        "  ok      share: 0.5, bar 0.25 to 0.75\n"
        "  MISSED  share: 0.125, bar at least 0.25\n"
        "  ok      hash: 00ff, bar 00ff\n"
        "  MISSED  hash: 00ff, bar other than 00ff\n");
  CHECK(found.checked() == 4);
  CHECK(found.missed() == 2);
}

TEST_CASE("NaN misses every bar") {
  std::ostringstream text;
  lab::Findings found(text);
  found.within("x", NAN, -HUGE_VAL, HUGE_VAL);
  found.at_least("x", NAN, -HUGE_VAL);
  found.at_most("x", NAN, HUGE_VAL);
  found.exactly("x", NAN, NAN);
  CHECK(found.missed() == 4);
}

TEST_CASE("columns of a table are as wide as what is in them") {
  lab::Table table({"name", "a"});
  table.row({"x", "1.25"});
  std::ostringstream text;
  text << table;
  CHECK(text.str() == "  name     a\n  x     1.25\n");
}

}  // namespace
}  // namespace halftone::test::findings_test
