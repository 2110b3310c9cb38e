// Refusals of a session: unsupported operations, rules without effect, damaged states.
#include <doctest/doctest.h>

#include <utility>

#include "policy/session_cases.h"

namespace halftone::test::session_errors_test {
namespace {

TEST_CASE("settings that an operation does not support, and rules that match nothing, are errors") {
  Pass inexact(R"({"halftone_policy": 1, "name": "t", "extends": "amp-bf16", "rules": [
    {"match": {"op": "linear"}, "input": "fp8_block"}]})");
  CHECK_THROWS_WITH_AS(inexact.run(),
                       "[policy t] 0/linear.0: the grid of \"input\" is e4m3, blocks of 1x128 with "
                       "f32 scales, which bf16 does not hold exactly. Add \"compute\": \"f32\", or "
                       "a power-of-two scale.",
                       UsageError);
  Pass nothing(policy_with(R"({"name": "head", "match": {"path": "head.*"}, "input": "e4m3"})"));
  nothing.run();
  auto& session = policy::session_of(nothing.training);
  CHECK_THROWS_AS(session.require_all_rules_used(), UsageError);
}

TEST_CASE("a state that only other optimizers have is an error of the first step") {
  Steps of_sgd(policy_with("", R"(, "optimizer": {"states": {"momentum_buffer": "bf16"}})"));
  CHECK_THROWS_WITH_AS(of_sgd.step(0),
                       "[policy t] the policy has a grid for the state momentum_buffer, and this "
                       "optimizer has only exp_avg. Use the optimizer that the policy is for, or "
                       "name that state.",
                       UsageError);
}

TEST_CASE("a state that the optimizer does not have is an error of the first step") {
  Steps misspelt(policy_with("", R"(, "optimizer": {"states": {"exp_average": "bf16"}})"));
  CHECK_THROWS_WITH_AS(misspelt.step(0),
                       "[policy t] there is no state of an optimizer named \"exp_average\". Did "
                       "you mean \"exp_avg\"?",
                       UsageError);
}

TEST_CASE("a damaged state is refused, and the session continues with its own") {
  Steps damaged(policy_with(delayed_policy)), plain(policy_with(delayed_policy));
  damaged.step(0), plain.step(0);
  auto& session = *damaged.training.region().session;
  const auto with = [&](const char* entry, const Tensor& x) {
    NamedTensors state = session.state_dict();
    REQUIRE(state.contains(entry));
    state[entry] = x;
    return state;
  };
  for (const auto& [entry, x] :
       {std::pair{"position.0/linear.0.input", full({1}, -3, i64)},
        std::pair{"position.0/linear.0.input", ones({1})},
        std::pair{"history.0/linear.0.input", Tensor{}}, std::pair{"step", full({}, -1, i64)},
        std::pair{"pass", full({}, 9.2e18, i64)}}) {
    CAPTURE(entry);
    CHECK_THROWS_AS(session.load_state_dict(with(entry, x)), UsageError);
  }
  damaged.step(1), plain.step(1);
  CHECK(damaged.weights() == plain.weights());
}

TEST_CASE("f64 is not emulated: an error, not a rule without effect") {
  for (const char* rule : {R"("input": "e4m3")", R"("accumulate": {"format": "e8m7"})"}) {
    Pass pass(R"({"halftone_policy": 1, "name": "t", "extends": "fp64", "rules": [
      {"match": {"op": "linear"}, )" +
              std::string(rule) + "}]}");
    CHECK_THROWS_WITH_AS(pass.run(),
                         "[policy t] 0/linear.0: its operands are f64, in which nothing is "
                         "emulated. Extend a strategy with f32 weights, or except this place.",
                         UsageError);
  }
  CHECK_THROWS_AS(Pass(R"({"halftone_policy": 1, "name": "t", "extends": "fp64", "optimizer":
    {"parameters": "e4m3"}})"),
                  UsageError);
}

}  // namespace
}  // namespace halftone::test::session_errors_test
