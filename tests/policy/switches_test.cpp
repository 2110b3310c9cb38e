// Rules with "when": they begin and end by the last survey of a tensor, after the step.
#include <doctest/doctest.h>

#include <halftone/amp/resolved.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/ops.h>
#include <halftone/nn/layers.h>
#include <halftone/optim/optimizers.h>

#include "amp/cases.h"
#include "policy/policy_cases.h"
#include "support.h"

namespace halftone::test::switches_test {
namespace {

/// A layer whose input is numbers of e2m1 times `spread` and one of 1: with a small spread most
/// numbers become 0.
struct Follows {
  nn::Sequential model;
  optim::Sgd sgd;
  amp::Training training;

  explicit Follows(const std::string& when, const std::string& rule = R"("input": "none")")
      : model((manual_seed(1), nn::Linear(32, 8))),
        sgd(model.parameters(), {.lr = 0.01}),
        training(
            policy::read_text(R"({"halftone_policy": 1, "name": "t", "extends": "fp32", "rules": [
                   {"match": {"op": "linear"}, "input": "e2m1"},
                   {"name": "follows", "match": {"op": "linear", "when": {)" +
                              when + "}}, " + rule + "}]}"),
            model, sgd) {}

  /// A step whose inputs have this magnitude. Returns whether the input was rounded.
  bool step(float magnitude) {
    training.zero_grad();
    const Tensor x = full({4, 32}, double(magnitude));
    const Tensor y = training.forward(model, x);
    training.backward(y.sum());
    const auto& layer = static_cast<nn::Linear&>(model[0]);
    const NoGrad no_grad;
    const bool rounded = floats(y) != floats(linear(x, layer.weight, layer.bias));
    training.step();
    return rounded;
  }
  const std::vector<policy::Switched>& log() { return policy::session_of(training).switched(); }
};

constexpr float lost = 0.2f, kept = 1.1f;  // in e2m1: 0, and 1
const std::string underflows = R"("role": "input", "underflow": {"above": 0.5}, "over": 3)";

TEST_CASE("switches: a rule follows the last measured step, not the present one") {
  Follows run(underflows);
  // Steps 2, 5, 8, ... measure; what they see holds from the next step on.
  std::vector<bool> rounded;
  for (const float x :
       {lost, lost, kept, lost, lost, lost, lost, kept, kept, kept, kept, lost, kept})
    rounded.push_back(run.step(x));
  //                                                 5: lost           8: kept        11: lost
  CHECK(rounded == std::vector<bool>{true, true, true, true, true, true, false, false, false, true,
                                     true, true, false});
  REQUIRE(run.log().size() == 3);
  const policy::Switched& first = run.log()[0];
  CHECK(first.step == 6);
  CHECK(first.rule == 1);
  CHECK(first.site == "0/linear.0");
  CHECK(first.on);
  CHECK(first.value == 1);
  CHECK(run.log()[1].step == 9);
  CHECK_FALSE(run.log()[1].on);
  CHECK(run.log()[2].step == 12);
}

TEST_CASE("switches: a rule that stays") {
  Follows run(underflows + R"(, "then": "stays")");
  for (const float x : {kept, kept, lost, kept, kept, kept}) run.step(x);
  CHECK_FALSE(run.step(lost));
  CHECK(run.log().size() == 1);
}

TEST_CASE("switches: every statistic, of the rule's own grid or of the others'") {
  // 1.1 in e2m1 is 1: an error of 1 part in 11; in e4m3 it is 1.125, 1 in 44.
  const auto value = [](const std::string& when, const std::string& rule) {
    Follows run("\"role\": \"input\", \"over\": 1, " + when, rule);
    run.step(kept);
    return run.log().empty() ? -1 : run.log()[0].value;
  };
  const std::string others = R"("input": "none")", own = R"("input": "e4m3")";
  CHECK(value(R"("norm_to_noise": {"below": 12})", others) == doctest::Approx(11));
  CHECK(value(R"("norm_to_noise": {"below": 10})", others) == -1);
  CHECK(value(R"("norm_to_noise": {"above": 12})", own) == doctest::Approx(44));
  CHECK(value(R"("sqnr_db": {"above": 20})", others) == doctest::Approx(20 * std::log10(11.0)));
  CHECK(value(R"("underflow": {"below": 0.1})", others) == 0);
  CHECK(value(R"("saturated": {"below": 0.1})", others) == 0);
  CHECK(value(R"("bias_t": {"above": 3})", others) == -1);  // all errors are equal: no variance
}

TEST_CASE("switches: a saved state has them, and the resumed training the same bits") {
  const auto states = [](bool resumed) {
    Follows run(underflows);
    const std::vector<float> all{kept, lost, lost, kept, lost, kept, lost, kept, lost, lost};
    std::vector<std::vector<float>> weights;
    Follows other(underflows);
    Follows* now = &run;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (resumed && i == 4) {
        other.training.load_state_dict(copy_of(run.training.state_dict()));
        now = &other;
      }
      now->step(all[i]);
      weights.push_back(floats(static_cast<nn::Linear&>(now->model[0]).weight));
    }
    return weights;
  };
  CHECK(states(false) == states(true));
  Follows run(underflows);
  for (int i = 0; i < 3; ++i) run.step(lost);
  const auto state = run.training.state_dict();
  REQUIRE(state.contains("session.switch.1.0/linear.0"));
  CHECK(floats(state.at("session.switch.1.0/linear.0").to(f32)) == std::vector<float>{1, 1});
  auto wrong = copy_of(state);
  wrong["session.switch.7.0/linear.0"] = zeros({2}, f64);
  CHECK_THROWS_AS(Follows(underflows).training.load_state_dict(wrong), UsageError);
}

TEST_CASE("switches: conditions that are refused, and what coverage says") {
  const auto refusal = [](const std::string& when) {
    return message_of<FormatError>([&] { Follows run(when); });
  };
  CHECK(contains(refusal(R"("underflow": {"above": 1})"), "\"role\", the tensor that is measured"));
  CHECK(contains(
      refusal(R"("role": "input")"),
      "a condition has one of norm_to_noise, saturated, underflow, bias_t and sqnr_db, got 0."));
  CHECK(contains(refusal(R"("role": "input.backward", "underflow": {"above": 1})"),
                 "is no tensor that a condition measures."));
  CHECK(contains(refusal(R"("role": "input", "underflow": {"above": 1, "below": 2})"),
                 "a bound is {\"below\": number} or {\"above\": number}."));
  CHECK(contains(refusal(R"("role": "input", "underflow": {"above": 1}, "over": 0)"),
                 "expected a whole number from 1"));
  Follows nothing(R"("role": "grad_input", "underflow": {"above": 1})", R"("input": "none")");
  CHECK(contains(message_of<UsageError>([&] { nothing.step(1); }),
                 "its condition is about the rounding of \"grad_input\", which no rule without a "
                 "condition rounds here."));
}

}  // namespace
}  // namespace halftone::test::switches_test
