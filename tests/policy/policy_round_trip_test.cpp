// Written policies are read unchanged: from files, and from code that can express more than a file.
#include <doctest/doctest.h>

#include <halftone/amp/cast_policy.h>
#include <halftone/amp/training.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optim.h>
#include <halftone/policy/session.h>

#include "policy_cases.h"

namespace halftone::test::policy_round_trip_test {
namespace {

using policy::PolicyFile;
using policy::Role;

const std::string one_rule = R"("rules": [{"match": {"op": "linear"}, "input": )";

/// Returns the message of write() for a rule with that quantizer, without "[policy.write] "; "" if
/// it is written and then read unchanged.
std::string refusal_to_write(const PolicyFile& file) {
  const std::string message = message_of<UsageError>([&] {
    const PolicyFile again = policy::read_text(policy::write(file), "again");
    CHECK(again.rules == file.rules);
    CHECK(policy::hash(again) == policy::hash(file));
  });
  const std::string where = "[policy.write] ";
  return message.starts_with(where) ? message.substr(where.size()) : message;
}

/// One rule with a quantizer from code.
PolicyFile with_input(const Quantizer& quantizer) {
  PolicyFile file = test::file_of(one_rule + R"("mxfp4"}])");
  file.rules.rules[0].roles[Role::input].quantizer = quantizer;
  return file;
}

TEST_CASE("every quantizer of the grammar survives writing") {
  for (const char* quantizer :
       {R"("e4m3")", R"({"format": "e4m3", "rounding": "stochastic", "random_bits": 8})",
        R"({"format": "e4m3", "random_bits": 32})",
        R"({"format": "e4m3", "scale": {"per": "tensor", "history": 1024, "take": "max"}})",
        R"({"format": "e4m3", "scale": {"per": "tensor", "from": "history", "history": 3,
            "take": "latest", "margin": 2, "power_of_two": true, "least": 0.125}})",
        R"({"like": "mxfp4", "hadamard": 16})",
        R"({"like": "mxfp4", "hadamard": {"size": 128, "signs": "step"}})",
        R"({"table": [1, -0.5, 0, 0.25]})", R"({"like": "mxfp4", "clip": {"rms": 4}})",
        R"({"format": "e4m3", "hadamard": 16, "clip": {"quantile": 0.999}})",
        R"({"format": "e2m1", "scale": {"per": "block", "format": "ue5m3", "rounding": "up"}})",
        R"({"like": "nvfp4", "scale": {"per": "block", "block": [1, 16], "format": "e4m3",
            "tensor_level": true, "scale_max": 256, "choose": {"from": [6, 4], "by": "mae"}}})",
        R"({"like": "nvfp4", "scale": {"per": "block", "block": [1, 16], "format": "e4m3",
            "tensor_level": true, "scale_max": 256, "choose": {"from": [6.07]},
            "rounding": "stochastic", "correct": "eden"}})",
        R"({"format": "e2m1", "scale": {"per": "block", "block": [1, 16], "format": "e4m3",
            "outer": "row", "scale_max": 256, "fit": "mse"}})",
        R"({"format": "e2m1", "scale": {"per": "block", "fit": "mse"}})", R"("nvfp4")", R"("int5")",
        R"({"format": {"exponent": 5, "fraction": 2, "infinity": false, "subnormals": false}})",
        R"({"format": "e5m2", "scale": {"per": "block", "block": [2, 3], "rule": "even"}})"}) {
    CAPTURE(quantizer);
    const PolicyFile file = test::file_of(one_rule + quantizer + "}]");
    CHECK(refusal_to_write(file).empty());
  }
  const PolicyFile averaged =
      test::file_of(R"("rules": [{"weight": {"like": "mxfp8", "average": 0.998}}])");
  CHECK(averaged.rules.rules[0].roles.at(Role::weight).quantizer.average == 0.998);
  CHECK(refusal_to_write(averaged).empty());
  // The file says what the scale does, in the one way that the writer uses.
  const auto scaling_of = [&](const std::string& scale) {
    const PolicyFile read =
        test::file_of(one_rule + R"({"format": "e2m1", "scale": )" + scale + "}}]");
    return read.rules.rules[0].roles.at(Role::input).quantizer.scaling;
  };
  CHECK(scaling_of(R"({"per": "block", "fit": "mse"})") ==
        scaling_of(R"({"per": "block", "choose": {"from": [6, 12], "by": "mse"}})"));
  CHECK(scaling_of(R"({"per": "block", "format": "e4m3", "outer": "tensor"})") ==
        scaling_of(R"({"per": "block", "format": "e4m3", "tensor_level": true})"));
  CHECK(scaling_of(R"({"per": "block", "format": "e4m3", "outer": "row"})").row_level);
  CHECK(scaling_of(R"({"per": "block", "format": "e4m3", "fit": "mse"})").target_count() == 8);
  // A setting that "like" copies, and that another rounding does not use, has its default.
  const PolicyFile file = test::file_of(R"("quantizers": {
    "a": {"format": "e4m3", "rounding": "stochastic", "random_bits": 8},
    "b": {"like": "a", "rounding": "up"}}, )" +
                                        one_rule + R"("b"}])");
  CHECK(file.rules.rules[0].roles.at(Role::input).quantizer.random_bits == 32);
  CHECK(refusal_to_write(file).empty());
}

TEST_CASE("settings that no file can express are not written") {
  Quantizer q{.grid = formats::e4m3};
  q.grid.min_exponent = -8;
  CHECK(refusal_to_write(with_input(q)) ==
        "no file can say the grid of 4 significand bits, least exponent -8 and 8 bits: a file's "
        "grids have the bias and the bits of their exponent. Use one of those, or keep the policy "
        "in code.");
  q = *quantizer_named("mxfp4"), q.hadamard = 16, q.hadamard_signs = 5;
  CHECK(contains(refusal_to_write(with_input(q)), "no file can say the signs 5 of a rotation: "));
  q = *quantizer_named("nvfp4"), q.scaling.scale_format.min_exponent = -8;
  CHECK(contains(refusal_to_write(with_input(q)), "no file can say the grid of 4 significand "));
  q = {.grid = formats::e4m3, .random_bits = 8};
  CHECK(contains(refusal_to_write(with_input(q)), "p has values where they have no effect, "));
  q = {.grid = formats::e4m3, .scaling = {.per = Scaling::Per::tensor, .history = 16}};
  CHECK(contains(refusal_to_write(with_input(q)), "p has values where they have no effect, "));
  q = {.grid = formats::e4m3, .scaling = {.per = Scaling::Per::tensor, .from_history = true}};
  CHECK(refusal_to_write(with_input(q)).empty());
}

TEST_CASE("strategies that reading would refuse are not written") {
  PolicyFile file = test::file_of("");
  file.base.seed = ~uint64_t(0);
  CHECK(contains(refusal_to_write(file),
                 "p is none that a file can say: /seed: expected a whole number from 0 to "));
  file = test::file_of("");
  file.base.name = "\xff";
  CHECK(contains(refusal_to_write(file), "has a text that is not UTF-8. Write names and remarks"));
  file.base.name = "a\nb";
  CHECK(refusal_to_write(file) ==
        "a\\nb is none that a file can say: /name: a name has 1 to 100 letters, all of them "
        "printable.");
  file = test::file_of("");
  file.base.form = WeightForm::master;
  CHECK(contains(refusal_to_write(file), "p is none that a file can say: /weights: weights are "));
  file = test::file_of("");
  file.meant_for = {"transformer"};
  CHECK(contains(refusal_to_write(file), "/for/0: gpt, lenet, "));
}

TEST_CASE("entries for operations of a user are not written") {
  static constexpr OpInfo mine("swish_gate", CastClass::as_is);
  auto own = std::make_shared<amp::CastPolicy>();
  (*own)["softmax"] = CastClass::low_precision;
  PolicyFile file{.base = amp::Strategy::named("amp-bf16")};
  file.base.own_policy = own;
  CHECK(refusal_to_write(file).empty());
  (*own)[mine] = CastClass::low_precision;
  CHECK(contains(refusal_to_write(file),
                 "the policy of amp-bf16 has entries of operations that are not the library's"));
}

TEST_CASE("a strategy that was loaded and changed is written in its present state") {
  const std::string text =
      text_of(R"("extends": "amp-bf16", "seed": 4, )" + one_rule + R"("mxfp8"}])");
  amp::Strategy strategy = policy::parse(text);
  CHECK(policy::write(policy::file_of(strategy)) == policy::write(policy::read_text(text, "x")));
  strategy.name = "changed", strategy.state_dtype = bf16, strategy.autocast = f16;
  const PolicyFile file = policy::file_of(strategy);
  CHECK(file.base.name == "changed");
  CHECK(file.base.state_dtype == bf16);
  CHECK(file.base.autocast == f16);
  CHECK_FALSE(file.base.session);
  CHECK(file.rules == policy::read_text(text, "x").rules);
  CHECK(contains(policy::write(file), "\"state_dtype\": \"bf16\""));
  strategy.seed = 5;
  CHECK(contains(policy::write(policy::file_of(strategy)), "\"seed\": 5"));
  nn::Linear model(2, 2);
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  const amp::Training training(strategy, model, sgd);
  CHECK(policy::session_of(training).settings().seed == 5);  // the rules draw with it
  amp::Strategy plain = amp::Strategy::named("full-bf16-sr");
  plain.seed = 5;
  CHECK(policy::file_of(plain).base.seed == 5);
}

}  // namespace
}  // namespace halftone::test::policy_round_trip_test
