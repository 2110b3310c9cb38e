// Rows of a comparison against plain computations: rounding errors, differences, their order, and
// the written file and table.
#include <doctest/doctest.h>

#include <cmath>

#include <nlohmann/json.hpp>

#include <halftone/core/formats/number_format.h>
#include <halftone/lab/commands/compare.h>

#include "lab/columns.h"
#include "lab/runs.h"
#include "support.h"

namespace halftone::test::compare_rows_test {
namespace {

using lab::Comparison;
using lab::Deviation;
using nlohmann::json;
using policy::Role;

constexpr int64_t inputs = 12, outputs = 5, rows = 16;

lab::Workload one_layer() { return linear_workload({inputs, outputs}, rows, rows); }

amp::Strategy with_rule(const std::string& rule) {
  return policy::parse(R"({"halftone_policy": 1, "name": "t", "extends": "fp32", "rules": [)" +
                       rule + "]}");
}

const Deviation* row_of(const Comparison& comparison, Role role) {
  for (const Deviation& row : comparison.rows)
    if (row.role == role) return &row;
  return nullptr;
}

/// sqrt(sum (y - x)^2 / sum x^2).
double relative_error(const std::vector<double>& x, const std::vector<double>& y) {
  double errors = 0, squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    errors += (y[i] - x[i]) * (y[i] - x[i]), squares += x[i] * x[i];
  return std::sqrt(errors / squares);
}

/// x W^T + b and the mean squared error, in f64.
struct Plain {
  std::vector<double> x{}, w{}, b{}, y{};
  Plain() {
    const lab::Workload work = one_layer();
    const data::Batch batch = lab::example_of(work);
    x = batch.inputs.to_vector<double>(), y = batch.targets.to_vector<double>();
    const auto parameters = work.model->parameters();
    w = parameters.at(0).to_vector<double>(), b = parameters.at(1).to_vector<double>();
  }
  std::vector<double> outputs_of(const std::vector<double>& from) const {
    std::vector<double> z;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t o = 0; o < outputs; ++o) {
        double sum = b[std::size_t(o)];
        for (int64_t i = 0; i < inputs; ++i)
          sum += from[std::size_t(r * inputs + i)] * w[std::size_t(o * inputs + i)];
        z.push_back(sum);
      }
    return z;
  }
  double loss_of(const std::vector<double>& z) const {
    double sum = 0;
    for (std::size_t i = 0; i < z.size(); ++i) sum += (z[i] - y[i]) * (z[i] - y[i]);
    return sum / double(z.size());
  }
  std::vector<double> rounded(const NumberFormat& format) const {
    std::vector<double> result;
    for (const double v : x) result.push_back(round_to(format, float(v)));
    return result;
  }
};

TEST_CASE("rounding, local and twin of a quantized input are those of a plain computation") {
  for (const char* name : {"e4m3", "e5m2", "e8m4", "e8m1"}) {
    CAPTURE(name);
    const NumberFormat format = *number_format_named(name);
    const Comparison c = lab::compare(
        one_layer, amp::Strategy::named("fp32"),
        with_rule(R"({"match": {"op": "linear"}, "input": ")" + std::string(name) + "\"}"));
    const Plain plain;
    const std::vector<double> rounded = plain.rounded(format);
    const double error = relative_error(plain.x, rounded);
    const double unit = std::sqrt(3 / (96 * std::log(2.0)));
    const Deviation* const input = row_of(c, Role::input);
    REQUIRE(input);
    CHECK(input->elements == rows * inputs);
    CHECK(input->rounding ==
          doctest::Approx(error / (unit * std::pow(2.0, 1 - format.significand_bits))));
    CHECK(input->twin == doctest::Approx(error));
    const std::vector<double> exact = plain.outputs_of(plain.x), out = plain.outputs_of(rounded);
    const Deviation* const output = row_of(c, Role::output);
    REQUIRE(output);
    CHECK(output->elements == rows * outputs);
    CHECK(output->local == doctest::Approx(relative_error(exact, out)).epsilon(1e-4));
    CHECK(output->twin == doctest::Approx(output->local).epsilon(1e-4));
    CHECK(output->amplification == doctest::Approx(output->local / error).epsilon(1e-3));
    CHECK(c.reference_loss == doctest::Approx(plain.loss_of(exact)).epsilon(1e-5));
    CHECK(c.candidate_loss == doctest::Approx(plain.loss_of(out)).epsilon(1e-5));
  }
}

TEST_CASE("a cast of a region is a rounding, and its operands are in the order of computation") {
  const Comparison c =
      lab::compare(one_layer, amp::Strategy::named("fp32"), amp::Strategy::named("amp-bf16"));
  const Plain plain;
  const Deviation* const input = row_of(c, Role::input);
  REQUIRE(input);
  CHECK(input->rounding * std::sqrt(3 / (96 * std::log(2.0))) * 0x1p-7 ==
        doctest::Approx(relative_error(plain.x, plain.rounded(formats::bf16))));
  std::vector<Role> order;
  for (const Deviation& row : c.rows)
    if (row.site == "0/linear.0") order.push_back(row.role);
  REQUIRE(order.size() >= 4);
  CHECK(order[0] == Role::input);
  CHECK(std::ranges::find(order, Role::output) < std::ranges::find(order, Role::grad_output));
  CHECK(std::ranges::find(order, Role::weight) < std::ranges::find(order, Role::output));
}

TEST_CASE("an input beyond the format's range is the first that deviates, with its reason") {
  const auto scaled = [](double by) {
    return [by] {
      lab::Workload work = one_layer();
      const data::Batch batch = lab::example_of(work);
      work.example = data::Batch{batch.inputs * by, batch.targets};
      return work;
    };
  };
  const amp::Strategy e2m1 = with_rule(R"({"match": {"op": "linear"}, "input": "e2m1"})");
  const auto first = [&](double by) {
    const Comparison c = lab::compare(scaled(by), amp::Strategy::named("fp32"), e2m1);
    REQUIRE(c.first >= 0);
    const Deviation& row = c.rows.at(std::size_t(c.first));
    CHECK(row.role == Role::input);
    return row.reason;
  };
  CHECK(first(100).ends_with("saturate"));
  CHECK(first(0.01).ends_with("underflow to 0"));
  // With a limit above any error nothing deviates.
  const Comparison c = lab::compare(scaled(100), amp::Strategy::named("fp32"), e2m1,
                                    {.rounding = 1e9, .amplification = 1e9});
  CHECK(c.first == -1);
}

// --- the file and the table

Comparison written() {
  Comparison c;
  c.rows.push_back(
      {.site = "a", .role = Role::input, .elements = 8, .rounding = 1.25, .twin = 0.5});
  c.rows.push_back({.site = "b", .role = Role::weight, .input = 1, .elements = 4});
  c.rows.push_back({.site = "c",
                    .role = Role::output,
                    .elements = 2,
                    .local = 0.125,
                    .amplification = HUGE_VAL,
                    .twin = 0.25,
                    .reason = "it \"errs\""});
  c.rows.push_back({.site = "d", .role = Role::grad_output, .local = 0});
  c.first = 2, c.reference_loss = 1.5, c.candidate_loss = 1.75;
  return c;
}

TEST_CASE("the file has every row, null where a number does not apply") {
  const json all = json::parse(lab::json_of(written(), {"p", "r", "w"}, 18446744073709551615u));
  CHECK(all["format"] == 1);
  CHECK(all["policy"] == "p");
  CHECK(all["reference"] == "r");
  CHECK(all["workload"] == "w");
  CHECK(all["seed"] == 18446744073709551615u);
  CHECK(all["first"] == 2);
  CHECK(all["reference_loss"] == 1.5);
  CHECK(all["candidate_loss"] == 1.75);
  REQUIRE(all["rows"].size() == 4);
  CHECK(all["rows"][0] == json{{"site", "a"},
                               {"role", "input"},
                               {"input", 0},
                               {"elements", 8},
                               {"rounding", 1.25},
                               {"local", nullptr},
                               {"amplification", nullptr},
                               {"twin", 0.5},
                               {"reason", ""}});
  CHECK(all["rows"][1]["input"] == 1);
  CHECK(all["rows"][2]["amplification"].is_null());  // infinite
  CHECK(all["rows"][2]["reason"] == "it \"errs\"");
  Comparison none = written();
  none.first = -1;
  CHECK(json::parse(lab::json_of(none, {}, 0))["first"].is_null());
}

TEST_CASE("the table has what was rounded or computed from it, and marks the first") {
  const std::string text = lab::table_of(written());
  const Columns table(text.substr(0, text.find("\n\n") + 1));
  REQUIRE(table.rows() == 2);  // b and d have nothing to show
  CHECK(table.at(0, "site") == "a");
  CHECK(table.at(0, "role") == "input");
  CHECK(table.at(0, "rounding") == "1.2");
  CHECK(table.at(0, "local") == "-");
  CHECK(table.at(0, "twin") == "0.5");
  CHECK(table.at(1, "site") == "c");
  CHECK(table.at(1, "local") == "0.12");
  CHECK(table.cell(1, table.columns() - 1) == "<- first: it \"errs\"");
}

}  // namespace
}  // namespace halftone::test::compare_rows_test
