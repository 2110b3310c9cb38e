// The output of show for a policy: every step, every field, and differences between two.
#include <set>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <halftone/nn/models/gpt.h>
#include <halftone/policy/resolved.h>

#include "../support.h"
#include "session_cases.h"

namespace halftone::test::resolved_table_test {
namespace {

using nlohmann::json;

const std::string unchanged = R"({"weight": "none"})";  // a rule without effect

const policy::PolicySession& session_in(const amp::Training& training) {
  return policy::session_of(training);
}

/// An MLP after a step under a policy.
struct Resolved {
  Steps steps;
  explicit Resolved(const std::string& text, std::vector<int64_t> sizes = {6, 8, 3})
      : steps(text, std::move(sizes)) {
    if (steps.training.strategy().wire != distributed::WireFormat{})
      steps.training.train_together();
    steps.step(0);
  }
  const policy::PolicySession& session() const { return session_in(steps.training); }
  std::string hash() const { return policy::resolved_hash(session()); }
  std::string table() const { return policy::resolved_table(session()); }
};

std::string input_rule(const std::string& quantizer, const std::string& more = "") {
  return policy_with(R"({"match": {"op": "linear"}, "input": )" + quantizer + "}", more);
}

TEST_CASE("a resolved hash depends on every field that has an effect, and on no name") {
  std::vector<std::string> texts{input_rule(R"("e4m3")"), input_rule(R"("e5m2")"),
                                 input_rule(R"("e4m3")", R"(, "seed": 1)"),
                                 input_rule(R"("e4m3")", R"(, "evaluation": "reference")")};
  for (const char* format : {R"({"exponent": 5, "fraction": 2, "infinity": false})",
                             R"({"exponent": 5, "fraction": 2, "subnormals": false})",
                             R"({"exponent": 5, "fraction": 2, "infinity": false,
                                 "subnormals": false})"})
    texts.push_back(input_rule(R"({"format": )" + std::string(format) + "}"));
  for (const char* more :
       {R"("scale": {"per": "tensor"})", R"("scale": {"per": "tensor", "least": 100})",
        R"("scale": {"per": "tensor", "margin": 1})",
        R"("scale": {"per": "tensor", "from": "history"})", R"("scale": {"per": "block"})",
        R"("hadamard": 2)", R"("rounding": "stochastic")",
        R"("rounding": "stochastic", "random_bits": 8)"})
    texts.push_back(input_rule(R"({"format": "e4m3", )" + std::string(more) + "}"));
  for (const char* optimizer :
       {R"("parameters": "e8m15")", R"("parameters": "e8m14")", R"("states": {"exp_avg": "bf16"})",
        R"("states": {"exp_avg_sq": "bf16"})"})
    texts.push_back(input_rule(R"("e4m3")", R"(, "optimizer": {)" + std::string(optimizer) + "}"));
  for (const char* steps : {"[100, null]", "[101, null]", "[0, 100]"})
    texts.push_back(policy_with(R"({"match": {"op": "linear", "steps": )" + std::string(steps) +
                                R"(}, "input": "e4m3"})"));
  std::set<std::string> hashes;
  for (const std::string& text : texts) {
    CAPTURE(text);
    CHECK(hashes.insert(Resolved(text).hash()).second);
  }
  // The same with another name, in more rules, or in words that change nothing.
  const std::string usual = Resolved(texts[0]).hash();
  CHECK(Resolved(input_rule(R"("mine")", R"(, "quantizers": {"mine": "e4m3"})")).hash() == usual);
  CHECK(Resolved(policy_with(R"({"match": {"path": "0"}, "input": "e4m3"},
                                {"match": {"path": "2"}, "input": "e4m3"})"))
            .hash() == usual);
  CHECK(Resolved(policy_with(R"({"match": {"op": "linear"}, "input": "e4m3", "output": "none",
                                 "input.backward": "as_used"})"))
            .hash() == usual);
  CHECK(Resolved(policy_with(R"({"match": {"op": "linear", "steps": [0, 7]}, "input": "e4m3"},
                                {"match": {"op": "linear", "steps": [7, null]}, "input": "e4m3"})"))
            .hash() == usual);
}

TEST_CASE("differences between two policies are those of their content, not of their names") {
  const auto with = [](const std::string& quantizer, const std::string& more = "") {
    return input_rule(R"("forward")", R"(, "quantizers": {"forward": )" + quantizer + "}" + more);
  };
  const Resolved now(with(R"("fp8_tensor")"));
  const Resolved late(with(R"({"format": "e4m3", "scale": {"per": "tensor", "from": "history"}})"));
  const std::string text = policy::resolved_difference(now.session(), late.session());
  CHECK(text ==
        "0/linear.0\n"
        "  - low_precision | f32 | input=forward (e4m3, scaled per tensor)\n"
        "  + low_precision | f32 | input=forward (e4m3, scaled per tensor from the largest of 1024 "
        "steps)\n"
        "2/linear.0\n"
        "  - low_precision | f32 | input=forward (e4m3, scaled per tensor)\n"
        "  + low_precision | f32 | input=forward (e4m3, scaled per tensor from the largest of 1024 "
        "steps)\n");
  CHECK(policy::resolved_difference(now.session(), now.session()).empty());

  // Settings that a description omits follow it.
  const auto in_format = [&](const std::string& more) {
    return Resolved(with(R"({"format": {"exponent": 5, "fraction": 2)" + more + "}}"));
  };
  CHECK(contains(policy::resolved_difference(
                     in_format(R"(, "infinity": false)").session(),
                     in_format(R"(, "infinity": false, "subnormals": false)").session()),
                 "{no infinity, no subnormals}"));
  CHECK(contains(policy::resolved_difference(
                     now.session(),
                     Resolved(with(R"({"format": "e4m3", "scale": {"per": "tensor", "least": 2}})"))
                         .session()),
                 "(e4m3, scaled per tensor {least 2})"));
}

TEST_CASE("a wire is in the table, in JSON, in the hash and among differences") {
  const Resolved plain(policy_with(unchanged)),
      wired(policy_with(unchanged, R"(, "communication": {"gradients": "f8_e4m3"})"));
  CHECK(contains(wired.table(), "gradients, on their way to the sum: f8_e4m3\n"));
  CHECK(!contains(plain.table(), "gradients, on their way"));
  CHECK(json::parse(policy::resolved_json(wired.session()))["communication"] ==
        json{{"gradients", "f8_e4m3"}});
  CHECK(wired.hash() != plain.hash());
  CHECK(policy::resolved_difference(plain.session(), wired.session()) ==
        "gradients on their way\n  - own\n  + f8_e4m3\n");
  const auto found =
      json::parse(policy::resolved_difference_json(wired.session(), plain.session()));
  CHECK(found["communication"]["before"] == json{{"gradients", "f8_e4m3"}});
  CHECK(found["communication"]["after"].is_null());
}

TEST_CASE("grids of parameters and states, seed and evaluation differ as well") {
  const Resolved plain(policy_with(unchanged));
  const Resolved grids(
      policy_with("", R"(, "optimizer": {"parameters": "e8m15", "states": {"exp_avg": "bf16"}},
                           "seed": 3, "evaluation": "reference")"));
  CHECK(policy::resolved_difference(plain.session(), grids.session()) ==
        "parameters\n  - none\n  + e8m15\nstate exp_avg\n  - none\n  + bf16\n"
        "evaluation\n  - \"same\"\n  + \"reference\"\nseed\n  - 0\n  + 3\n");
  CHECK(contains(policy::resolved_difference(grids.session(), plain.session()),
                 "parameters\n  - e8m15\n  + none\n"));
  const auto found =
      json::parse(policy::resolved_difference_json(plain.session(), grids.session()));
  CHECK(found["sites"].empty());
  CHECK(found["parameters"]["before"] == "none");
  CHECK(found["parameters"]["after"]["format"]["significand_bits"] == 16);
  CHECK(found["states"]["after"].contains("exp_avg"));
  CHECK(found["seed"] == json{{"before", 0}, {"after", 3}});
  CHECK(contains(grids.table(),
                 "parameters, after each step: e8m15\n"
                 "state exp_avg, after each step: bf16\n"));

  const Resolved rule(input_rule(R"("e4m3")"));
  const auto sites = json::parse(policy::resolved_difference_json(plain.session(), rule.session()));
  CHECK(sites.size() == 1);
  REQUIRE(sites["sites"].size() == 2);
  const json& site = sites["sites"]["0/linear.0"];
  CHECK(site["before"]["treatment"] == json::parse(R"([{"steps": [0, null], "does": {}}])"));
  CHECK(site["after"]["treatment"][0]["does"]["input"]["format"]["significand_bits"] == 4);
}

TEST_CASE("rules of steps apply to their matches when they hold") {
  // "late" begins in a step that no pass has reached.
  const Resolved resolved(
      policy_with(R"({"name": "late", "match": {"op": "linear", "steps": [100, null]},
                      "compute": "f32", "input": "fp8_tensor"},
                     {"name": "once", "match": {"path": "0", "op": "linear", "steps": [7, 8]},
                      "weight": "e4m3"})"));
  const std::string table = resolved.table();
  CAPTURE(table);
  CHECK(contains(table, "rule 0 (late), steps from 100: 2 sites, 72 parameters, 100.0 % of the "));
  CHECK(contains(table, "rule 1 (once), step 7: 1 sites, 48 parameters, 66.7 % of the flops"));
  CHECK(contains(table, "products that no rule reaches: none\n"));
  CHECK(contains(table, "low_precision | f32 | |, steps 0 to 6\n"));
  CHECK(contains(table, "low_precision | f32 | weight=e4m3 | 1, step 7\n"));
  CHECK(contains(table, "low_precision | f32 | |, steps 8 to 99\n"));
  CHECK(contains(table, "low_precision | f32 | input=fp8_tensor | 0, steps from 100\n"));

  const auto all = json::parse(policy::resolved_json(resolved.session()));
  const json& parts = all["sites"][0]["treatment"];
  REQUIRE(parts.size() == 4);
  CHECK(parts[1]["steps"] == json::parse("[7, 8]"));
  CHECK(parts[3]["steps"] == json::parse("[100, null]"));
  CHECK(parts[3]["does"]["compute"] == "f32");
}

TEST_CASE("layers of a list that a rule leaves out by their numbers are a warning") {
  const auto table_with = [](const std::string& rules) {
    return Resolved(policy_with(rules), {6, 8, 8, 8, 3}).table();
  };
  // Linear layers are members 0, 2, 4 and 6.
  const auto rule = [](const std::string& path) {
    return R"({"name": "first", "match": {"op": "linear", "path": ")" + path +
           R"("}, "input": "e4m3"})";
  };
  CHECK(contains(table_with(rule("{0,2,4}")),
                 "warning: rule 0 (first) names layers by number and leaves 6, which no other rule "
                 "reaches\n"));
  CHECK(contains(table_with(rule("2")), "by number and leaves 0, 4, 6, which"));
  CHECK_FALSE(contains(table_with(rule("{0,2,4,6}")), "warning"));
  CHECK_FALSE(contains(table_with(rule("{0,2,4}") + ", " + rule("6")), "warning"));
  // Brackets count members, and stars match all of them.
  CHECK_FALSE(contains(table_with(rule("[0:-1]")), "warning"));
  CHECK_FALSE(contains(table_with(rule("*")), "warning"));
}

/// The table of a model after one pass.
template <class Model>
std::string table_of_pass(Model& model, const Tensor& x, const std::string& rules) {
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(policy::parse(policy_with(rules)), model, sgd);
  training.backward(mean(training.forward([&](const Tensor& in) { return model(in); }, x)));
  return policy::resolved_table(session_in(training));
}

TEST_CASE("attention and transposed convolution are products as well") {
  nn::models::Gpt gpt({.vocabulary = 16, .context = 8, .layers = 2, .heads = 2, .width = 16});
  const std::string linear = R"({"match": {"op": "linear"}, "input": "e4m3"})";
  const std::string table = table_of_pass(gpt, randint(0, 16, {2, 8}), linear);
  CAPTURE(table);
  CHECK(contains(table,
                 "products that no rule reaches: transformer.h.0.attn/scaled_dot_product_"
                 "attention"));
  nn::Sequential up(nn::ConvTranspose2d(2, 3, 2));
  CHECK(contains(table_of_pass(up, randn({1, 2, 4, 4}),
                               R"({"match": {"op": "linear"}, "optional": true, "input": "e4m3"})"),
                 "products that no rule reaches: 0/conv_transpose2d.0\n"));
  CHECK(contains(table_of_pass(up, randn({1, 2, 4, 4}),
                               R"({"match": {"asks": "low_precision"}, "input": "e4m3"})"),
                 "products that no rule reaches: none\n"));
}

TEST_CASE("a pattern within a list of blocks names the blocks that it leaves out") {
  nn::models::Gpt gpt({.vocabulary = 16, .context = 8, .layers = 4, .heads = 2, .width = 16});
  CHECK(contains(
      table_of_pass(
          gpt, randint(0, 16, {2, 8}),
          R"({"match": {"op": "linear", "path": "transformer.h.{0,1,2}.**"}, "input": "mxfp8"})"),
      "warning: rule 0 names layers by number and leaves transformer.h.3, which no other"));
}

}  // namespace
}  // namespace halftone::test::resolved_table_test
