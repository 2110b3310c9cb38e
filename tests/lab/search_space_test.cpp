// Spaces of rules: the rules for a workload's pass, the fields of each, and that each changes
// something.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include <halftone/lab/search.h>
#include <halftone/lab/trial.h>
#include <halftone/nn/nn.h>

#include "lab/runs.h"
#include "support.h"

namespace halftone::test::search_space_test {
namespace {

using lab::search_space;
using policy::Role;
using policy::Rule;
using Names = std::vector<std::string>;

lab::Workload mixed() {
  manual_seed(6);
  auto model = std::make_unique<nn::Sequential>(nn::Linear(8, 8), nn::Gelu(), nn::LayerNorm(8),
                                                nn::Linear(8, 4));
  const Tensor x = randn({16, 8}), y = randn({16, 4});
  return {
      .task = train::regression(static_cast<nn::Layer&>(*model)),
      .model = std::move(model),
      .train = [x, y] { return data::DataLoader(data::TensorDataset(x, y), {.batch_size = 8}); }};
}

std::vector<Rule> space_of(const char* space, const char* to, const char* base = "fp32") {
  return search_space(space, to, policy::named_or_read(base), mixed());
}

Names names_of(const std::vector<Rule>& rules) {
  Names names;
  for (const Rule& rule : rules) names.push_back(rule.name);
  return names;
}

std::set<Role> roles_of(const Rule& rule) {
  std::set<Role> roles;
  for (const auto& [role, what] : rule.roles) roles.insert(role);
  return roles;
}

TEST_CASE("ops: a rule for each kind of operation, in the order of first meeting") {
  const std::vector<Rule> rules = space_of("ops", "bf16");
  CHECK(names_of(rules) ==
        Names{"linear -> bf16", "gelu_erf -> bf16", "layer_norm -> bf16"});  // the loss is outside
  for (const Rule& rule : rules) {
    CAPTURE(rule.name);
    REQUIRE(rule.match.ops.size() == 1);
    CHECK(rule.match.ops[0] + " -> bf16" == rule.name);
    CHECK(rule.roles.empty());
    CHECK(rule.compute);
    CHECK(rule.result == f32);  // fp32 casts nothing: later operations need f32
  }
}

TEST_CASE("ops: what a base computes already is no rule, and a region hands on what it likes") {
  for (const Rule& rule : space_of("ops", "low", "amp-bf16")) {
    CAPTURE(rule.name);
    CHECK(rule.name != "linear -> low");
    CHECK_FALSE(rule.result);
  }
  CHECK(names_of(space_of("ops", "f32", "fp32")).empty());
  const Names back = names_of(space_of("ops", "f32", "amp-bf16"));
  CHECK(std::ranges::find(back, "linear -> f32") != back.end());
  CHECK(std::ranges::find(back, "layer_norm -> f32") != back.end());
}

TEST_CASE("ops to a quantizer: products alone, their operands and the gradient that arrives") {
  const std::vector<Rule> rules = space_of("ops", "mxfp8");
  REQUIRE(names_of(rules) == Names{"linear -> mxfp8"});
  // Blocks run along the dimension that a product sums over, which is another one in backward.
  CHECK(roles_of(rules[0]) == std::set{Role::input, Role::weight, Role::grad_output,
                                       Role::input_backward, Role::weight_backward,
                                       Role::grad_output_weight});
  CHECK_FALSE(rules[0].compute);
  const std::vector<Rule> scaled = space_of("ops", "fp8_tensor");
  CHECK(roles_of(scaled[0]) == std::set{Role::input, Role::weight, Role::grad_output});
  for (const auto& [role, rule] : rules[0].roles)
    CHECK(rule.quantizer == *quantizer_named("mxfp8"));
}

TEST_CASE("ops to a quantizer whose scales the region cannot hold: computed in f32") {
  for (const char* to : {"nvfp4", "fp8_block", "fp8_tensor"}) {
    CAPTURE(to);
    const std::vector<Rule> rules = space_of("ops", to, "amp-bf16");
    REQUIRE_FALSE(rules.empty());
    CHECK(rules[0].compute == policy::Compute::f32);
    CHECK(rules[0].result == bf16);
  }
  CHECK_FALSE(space_of("ops", "mxfp8", "amp-bf16")[0].compute);
}

TEST_CASE("modules: a rule for each module by its path, none for what is outside of all") {
  const std::vector<Rule> rules = space_of("modules", "bf16");
  CHECK(names_of(rules) == Names{"0 -> bf16", "1 -> bf16", "2 -> bf16", "3 -> bf16"});
  for (const Rule& rule : rules) CHECK(rule.match.path + " -> bf16" == rule.name);
  const std::vector<Rule> quantized = space_of("modules", "e4m3");
  CHECK(names_of(quantized) == Names{"0 -> e4m3", "3 -> e4m3"});
  for (const Rule& rule : quantized) CHECK(rule.match.asks == CastClass::low_precision);
}

TEST_CASE("roles: a rule for each operand of each kind of product") {
  const std::vector<Rule> rules = space_of("roles", "e5m2");
  CHECK(names_of(rules) ==
        Names{"linear input -> e5m2", "linear weight -> e5m2", "linear grad_output -> e5m2"});
  std::set<Role> roles;
  for (const Rule& rule : rules) {
    CHECK(rule.match.ops == Names{"linear"});
    REQUIRE(rule.roles.size() == 1);
    roles.merge(roles_of(rule));
  }
  CHECK(roles.size() == 3);
}

TEST_CASE("tf32 is the grid, and a format of one's own is a quantizer") {
  CHECK(names_of(space_of("ops", "tf32")) == Names{"linear -> tf32"});
  CHECK_FALSE(space_of("ops", "tf32").at(0).compute);
  CHECK(names_of(space_of("roles", "e5m6")).size() == 3);
  CHECK(space_of("ops", "e3m4").at(0).roles.at(Role::input).quantizer.grid ==
        *number_format_named("e3m4"));
}

TEST_CASE("the rules of a file are a space as they are") {
  const TemporaryDirectory directory;
  write_file(directory / "s.json", R"({"halftone_policy": 1, "name": "s", "extends": "fp32",
      "rules": [{"name": "a", "match": {"path": "0"}, "compute": "bf16"},
                {"match": {"op": "no_such"}, "weight": "e4m3"}]})");
  CHECK_FALSE(message_of<Error>([&] {
                space_of((directory / "s.json").c_str(), "ignored");
                space_of((directory / "none.json").c_str(), "ignored");
              }).empty());
  write_file(directory / "s.json", R"({"halftone_policy": 1, "name": "s", "extends": "fp32",
      "rules": [{"name": "a", "match": {"path": "0"}, "compute": "bf16"},
                {"match": {"op": "linear"}, "weight": "e4m3"}]})");
  const std::vector<Rule> rules = space_of((directory / "s.json").c_str(), "ignored");
  REQUIRE(rules.size() == 2);
  CHECK(rules[0].name == "a");
  CHECK(rules[1].match.ops == Names{"linear"});
  write_file(directory / "none.json", R"({"halftone_policy": 1, "name": "s", "extends": "fp32"})");
  CHECK(space_of((directory / "none.json").c_str(), "ignored").empty());
}

TEST_CASE("each rule of a space alone changes what a trial measures, and is a policy's rule") {
  const auto measured_with = [](const lab::Trial& trial, const policy::PolicyFile& base,
                                const Rule& rule) {
    policy::PolicyFile file = base;
    file.rules.rules.push_back(rule);
    CHECK(policy::read_text(policy::write(file), "written").rules == file.rules);
    return trial.measure(file);
  };
  lab::Trial trial(mixed, amp::Strategy::named("fp32"), {.batches = 1, .warm_up = 0});
  const policy::PolicyFile base = policy::named_or_read("fp32");
  trial.set_base(base);
  for (const auto& [space, to] : {std::pair("ops", "bf16"),
                                  {"modules", "bf16"},
                                  {"ops", "e4m3"},
                                  {"modules", "e4m3"},
                                  {"roles", "e4m3"}})
    for (const Rule& rule : search_space(space, to, base, mixed())) {
      CAPTURE(space);
      CAPTURE(rule.name);
      const lab::Measurement measured = measured_with(trial, base, rule);
      CHECK(measured.added > 0);
      CHECK(measured.added < 1);
    }
}

TEST_CASE("words that are no space and no quantizer are refused, with the nearest") {
  const auto refusal = [](const char* space, const char* to, const char* base = "fp32") {
    return message_of<UsageError>([&] { space_of(space, to, base); });
  };
  CHECK(contains(refusal("module", "bf16"), "Did you mean \"modules\""));
  CHECK(contains(refusal("", "bf16"), "no space named \"\""));
  CHECK(contains(refusal("ops", "bf61"), "Did you mean \"bf16\""));
  CHECK(contains(refusal("ops", ""), "no compute or quantizer named \"\""));
  CHECK(contains(refusal("roles", "f16"), "\"f16\" says nothing of a role"));
  CHECK(contains(refusal("ops", "low"), "fp32 has no autocast, so there is no \"low\""));
  CHECK(refusal("ops", "low", "amp-fp16").empty());
}

}  // namespace
}  // namespace halftone::test::search_space_test
