// Comparisons: the same policy twice differs nowhere; formats behave as predicted; planted faults
// are named first, with their reason.
#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/halftone.h>
#include <halftone/lab/commands/commands.h>
#include <halftone/lab/run.h>

#include "lab/pages.h"
#include "lab/runs.h"
#include "policy/policy_cases.h"
#include "support.h"

namespace halftone::test::compare_test {
namespace {

using lab::Comparison;
using lab::Deviation;
using policy::Role;

lab::Workload on_batch(std::unique_ptr<nn::Layer> model, const Tensor& x, const Tensor& y,
                       bool regression) {
  return {.task = regression ? train::regression(*model) : train::language_modeling(*model),
          .model = std::move(model),
          .train = [x, y] { return data::DataLoader(data::TensorDataset(x, y)); },
          .example = data::Batch{x, y}};
}

lab::Workload linear() {
  manual_seed(2);
  auto model = std::make_unique<nn::Linear>(256, 128);
  return on_batch(std::move(model), randn({64, 256}), randn({64, 128}), true);
}

lab::Workload small_gpt() {
  manual_seed(3);
  auto model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
      .vocabulary = 23, .context = 16, .layers = 2, .heads = 2, .width = 32});
  return on_batch(std::move(model), randint(0, 23, {4, 16}), randint(0, 23, {4, 16}), false);
}

amp::Policy fp8_linear(const std::string& quantizer) {
  return policy::read_text(R"({"halftone_policy": 1, "name": "t", "extends": "fp32", "rules":
    [{"match": {"op": "linear"}, "input": ")" +
                           quantizer + R"(", "weight": ")" + quantizer + R"("}]})");
}

TEST_CASE("a policy compared with itself differs nowhere") {
  for (const char* name : {"fp32", "amp-bf16"}) {
    const amp::Policy same = amp::Policy::named(name);
    const Comparison c = lab::compare(small_gpt, same, same);
    CHECK(c.first == -1);
    CHECK(c.reference_loss == c.candidate_loss);
    for (const Deviation& row : c.rows) {
      CAPTURE(row.site);
      CHECK(row.twin == 0);
    }
  }
}

TEST_CASE("Gaussian numbers in a linear layer round as every format predicts") {
  for (const char* name : {"e4m3", "e5m2", "bf16", "f16", "mxfp8", "mxfp6", "mxfp6-e3m2", "mxfp4",
                           "nvfp4", "fp8_tensor", "fp8_block"}) {
    CAPTURE(name);
    const Comparison c = lab::compare(linear, amp::Policy::named("fp32"), fp8_linear(name));
    int seen = 0;
    for (const Deviation& row : c.rows) {
      if (row.role != Role::input && row.role != Role::output) continue;
      ++seen;
      if (row.role == Role::input) {
        CHECK(row.rounding > 0.7);
        CHECK(row.rounding < 1.4);
      } else {
        CHECK(row.amplification > 0.7);
        CHECK(row.amplification < 1.4);
        CHECK(row.twin == doctest::Approx(row.local).epsilon(1e-3));
      }
    }
    CHECK(seen == 2);
  }
}

TEST_CASE("nothing predicts the error of a table, which has no significands") {
  const amp::Policy table =
      policy::read_text(R"({"halftone_policy": 1, "name": "t", "extends": "fp32",
    "rules": [{"match": {"op": "linear"}, "weight": {"table": [-1, -0.5, 0, 0.5, 1],
               "scale": {"per": "block", "block": [1, 64], "format": "f32"}}}]})");
  const Comparison c = lab::compare(linear, amp::Policy::named("fp32"), table);
  CHECK(c.first == -1);
  int seen = 0;
  for (const Deviation& row : c.rows) {
    if (row.role == Role::output) CHECK(row.amplification < 1.4);
    if (row.role != Role::weight) continue;
    CHECK(std::isnan(row.rounding));
    ++seen;
  }
  CHECK(seen == 1);
}

TEST_CASE("a result, or a gradient, 1 + 2^-5 times what it should be is named first, everywhere") {
  const amp::Policy candidate = amp::Policy::named("amp-bf16");
  const Comparison sound = lab::compare(small_gpt, amp::Policy::named("fp32"), candidate);
  CHECK(sound.first == -1);
  std::vector<std::string> sites;
  for (const Deviation& row : sound.rows)
    if (row.role == Role::output) sites.push_back(row.site);
  int named = 0;
  for (int at = 0; at < int(sites.size()); ++at)
    for (const bool backward : {false, true}) {
      CAPTURE(sites[std::size_t(at)]);
      CAPTURE(backward);
      // The task's forward function is wrapped, so that the fault is inside of the region.
      const auto make = [&] {
        lab::Workload wrong = small_gpt();
        wrong.task.forward = [forward = wrong.task.forward, at, backward](const Tensor& x) {
          const double by = 1 + 0x1p-5;
          const CasterScope scope(
              std::make_shared<Planter>(at, backward ? 1 : by, backward ? by : 1));
          return forward(x);
        };
        return wrong;
      };
      const Comparison c = lab::compare(make, candidate, candidate);
      REQUIRE(c.first >= 0);
      const Deviation& row = c.rows[std::size_t(c.first)];
      CHECK(row.site == sites[std::size_t(at)]);
      const bool gradient = row.role == Role::grad_input || row.role == Role::grad_weight;
      CHECK((backward ? gradient : row.role == Role::output));
      CHECK(row.reason.find("times as much as its operands") != std::string::npos);
      ++named;
    }
  CHECK(named >= 40);
}

TEST_CASE("a stale scale is named first, at every site that has one, forward and backward") {
  const amp::Policy delayed = policy::read_text(R"({"halftone_policy": 1, "name": "t",
    "extends": "fp32", "quantizers": {"late": {"format": "e4m3", "scale": {"per": "tensor",
    "from": "history", "history": 4}}}, "rules": [{"match": {"op": "linear"}, "input": "late",
    "weight": "late", "grad_output": "late"}]})");
  const Comparison sound = lab::compare(small_gpt, amp::Policy::named("fp32"), delayed);
  CHECK(sound.first == -1);
  std::set<std::string> entries;
  lab::compare(small_gpt, amp::Policy::named("fp32"), delayed,
               {.prepare = [&](amp::Training& training) {
                 for (const auto& [name, x] : training.region().session->state_dict())
                   if (name.starts_with("scale.")) entries.insert(name);
               }});
  REQUIRE(entries.size() >= 20);
  for (const std::string& entry : entries) {
    CAPTURE(entry);
    const Comparison c = lab::compare(
        small_gpt, amp::Policy::named("fp32"), delayed, {.prepare = [&](amp::Training& training) {
          NamedTensors state = training.region().session->state_dict();
          Tensor& scale = state.at(entry);
          scale = scale.clone();
          scale.data<float>()[0] *= 64;
          training.region().session->load_state_dict(state);
        }});
    REQUIRE(c.first >= 0);
    const Deviation& row = c.rows[std::size_t(c.first)];
    CHECK("scale." + row.site + '.' + std::string(policy::name(row.role)) ==
          entry.substr(0, entry.find_last_not_of("0123456789") + 1));
    CHECK(row.reason.find("a stale scale") != std::string::npos);
  }
}

}  // namespace
}  // namespace halftone::test::compare_test

// Rows of a comparison against plain computations: rounding errors, differences, their order, and
// the written file and table.

namespace halftone::test::compare_rows_test {
namespace {

using lab::Comparison;
using lab::Deviation;
using nlohmann::json;
using policy::Role;

constexpr int64_t inputs = 12, outputs = 5, rows = 16;

lab::Workload one_layer() { return linear_workload({inputs, outputs}, rows, rows); }

amp::Policy with_rule(const std::string& rule) {
  return policy::read_text(R"({"halftone_policy": 1, "name": "t", "extends": "fp32", "rules": [)" +
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
        one_layer, amp::Policy::named("fp32"),
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
      lab::compare(one_layer, amp::Policy::named("fp32"), amp::Policy::named("amp-bf16"));
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
  const amp::Policy e2m1 = with_rule(R"({"match": {"op": "linear"}, "input": "e2m1"})");
  const auto first = [&](double by) {
    const Comparison c = lab::compare(scaled(by), amp::Policy::named("fp32"), e2m1);
    REQUIRE(c.first >= 0);
    const Deviation& row = c.rows.at(std::size_t(c.first));
    CHECK(row.role == Role::input);
    return row.reason;
  };
  CHECK(first(100).ends_with("saturate"));
  CHECK(first(0.01).ends_with("underflow to 0"));
  // With a limit above any error nothing deviates.
  const Comparison c = lab::compare(scaled(100), amp::Policy::named("fp32"), e2m1,
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

// halftone-lab diff: equal and different traces, other intervals, and folders without a trace.

namespace halftone::test::diff_test {
namespace {

lab::NamedWorkload mine() {
  return {"mine", "", [](uint64_t) { return linear_workload({4, 2}); }, {}};
}

/// A run of 8 steps with a trace of every Nth.
struct Traced {
  TemporaryDirectory directory{};
  std::filesystem::path folder = directory / "mine-fp32-0";
  explicit Traced(int64_t every, double lr = 0) {
    std::ostringstream progress;
    const lab::Setup setup{.workload = "mine", .steps = 8, .choices = {.lr = lr}, .trace = every};
    lab::run({.cells = lab::read_cells({"fp32"}, setup), .out = directory.path()}, {mine()},
             progress);
  }
};

Said diff(const std::filesystem::path& first, const std::filesystem::path& second,
          const std::string& json = "") {
  std::vector<std::string> words{"diff", first.string(), second.string()};
  if (!json.empty()) words.insert(words.end(), {"--json", json});
  return said_by(words, mine());
}

TEST_CASE("traces of other intervals are compared in the steps that both have") {
  const Traced all(1), even(2), third(3), faster(3, 0.5);
  CHECK(diff(all.folder, all.folder).output.starts_with("equal: "));
  const Said equal = diff(all.folder, even.folder);
  CHECK(equal.code == 0);
  CHECK(contains(equal.output,
                 "the traces have different steps. Compared: steps 0, 2, 4, 6\nequal: "));
  CHECK(contains(diff(even.folder, third.folder).output, "Compared: steps 0, 6\nequal: "));
  const Said other = diff(even.folder, faster.folder);
  CHECK(other.code == 1);
  CHECK(contains(other.output, "Compared: steps 0, 6\n"));
  CHECK(contains(other.output, "first difference: step 6, "));
  const auto json = nlohmann::json::parse(diff(all.folder, even.folder, "-").output);
  CHECK(json["equal"] == true);
  CHECK(json["steps"] == 4);
  CHECK(json["all_steps"] == false);
  CHECK(nlohmann::json::parse(diff(all.folder, all.folder, "-").output)["all_steps"] == true);
}

TEST_CASE("folders that cannot be compared are mistakes, in the name of diff") {
  const Traced good(2), bad(2);
  const auto refused = [&] {
    const Said said = diff(good.folder, bad.folder);
    CHECK(said.code == 2);
    CHECK(said.errors.starts_with("[diff] "));
    return said.errors;
  };
  const std::string trace = read_file(bad.folder / "trace.jsonl");
  write_file(bad.folder / "trace.jsonl", "");
  CHECK(contains(refused(), " has an empty trace.jsonl. Give the folder of a run"));
  std::string later = trace;
  for (std::size_t at = 0; (at = later.find("\"step\":", at)) != later.npos; at += 9)
    later.insert(at + 7, "1");  // steps 10, 12, ...
  write_file(bad.folder / "trace.jsonl", later);
  CHECK(contains(refused(), "no step in common: 0, 2, 4, 6 and 10, 12, 14, 16."));
  write_file(bad.folder / "trace.jsonl", trace);
  const std::string summary = read_file(bad.folder / "summary.json");
  write_file(bad.folder / "summary.json", "{");
  CHECK(contains(refused(), "summary.json: it is not JSON."));
  std::filesystem::remove(bad.folder / "summary.json");
  CHECK(contains(refused(), "summary.json: the file is missing."));
  write_file(bad.folder / "summary.json", summary);
  CHECK(diff(good.folder, bad.folder).code == 0);
  std::filesystem::remove(bad.folder / "trace.jsonl");
  CHECK(contains(refused(), " has no trace.jsonl."));
}

}  // namespace
}  // namespace halftone::test::diff_test
