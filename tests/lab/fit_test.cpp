// Laws of the loss: planted constants are found again, planted laws are told apart, and bad input
// is refused.
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include <nlohmann/json.hpp>

#include <halftone/lab/fit.h>
#include <halftone/lab/operand_formats.h>
#include <halftone/lab/run.h>

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
  const auto runs = lab::run({.workload = "student_teacher",
                              .policies = {(folder / "p.json").string(), "amp-bf16"},
                              .steps = 3},
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
