// Averages of weights over steps: the recurrence, one update per step, evaluation, saved states,
// and what files cannot say.
#include <cmath>

#include <halftone/autograd/slots.h>
#include <halftone/core/backend.h>
#include <halftone/core/formats/quantizer.h>

#include "policy_cases.h"
#include "session_cases.h"

namespace halftone::test::weight_averages_test {
namespace {

constexpr double share = 0.75;
const std::string averaged = policy_with(
    R"({"match": {"op": "linear"}, "weight": {"format": "e2m1", "average": 0.75,
       "scale": {"per": "block", "block": [1, 4], "rule": "rceil"}}})");

NamedTensors state_of(const Steps& run) { return run.training.region().session->state_dict(); }

TEST_CASE("the average follows the weight, once per step") {
  Steps run(averaged);
  const Tensor weight = run.model.parameters()[0];
  std::vector<float> wanted = floats(weight);
  for (uint64_t i = 0; i < 4; ++i) {
    const std::vector<float> now = floats(weight);
    for (std::size_t k = 0; k < now.size() && i > 0; ++k)
      wanted[k] += float(1 - share) * (now[k] - wanted[k]);
    // Another training pass and an evaluation in the same step change nothing.
    run.training.forward([&](const Tensor& in) { return run.model(in); }, numbers({5, 6}, 30));
    {
      const NoGrad no_grad;
      run.training.forward([&](const Tensor& in) { return run.model(in); }, numbers({5, 6}, 31));
    }
    run.step(i);
    const Tensor average = state_of(run).at("average.0/linear.0.weight1");
    REQUIRE(average.shape() == weight.shape());
    for (std::size_t k = 0; k < wanted.size(); ++k)
      CHECK(average.data<float>()[k] == doctest::Approx(wanted[k]).epsilon(1e-6));
    CHECK((floats(average) != now) == (i > 0));
  }
}

TEST_CASE("a layer multiplies the weight that its average chooses") {
  Steps run(averaged, {6, 3});
  run.step(0), run.step(1), run.step(2);
  const Tensor x = numbers({5, 6}, 9);
  const NoGrad no_grad;
  const Tensor y = run.training.forward([&](const Tensor& in) { return run.model(in); }, x);
  Quantizer quantizer = *quantizer_named("mxfp4");
  quantizer.scaling.columns = 4, quantizer.scaling.rule = ScaleRule::rceil;
  quantizer.average = share;
  const Tensor weight = run.model.parameters()[0];
  const Tensor chosen = quantized(
      weight, {.quantizer = quantizer, .average = state_of(run).at("average.0/linear.0.weight1")});
  CHECK(floats(y) == floats(linear(x, chosen, run.model.parameters()[1])));
}

TEST_CASE("a training that is loaded in the middle ends with the same weights") {
  Steps whole(averaged), first(averaged), second(averaged);
  for (uint64_t i = 0; i < 6; ++i) whole.step(i);
  for (uint64_t i = 0; i < 3; ++i) first.step(i);
  const auto a = first.model.parameters(), b = second.model.parameters();
  for (std::size_t i = 0; i < a.size(); ++i) copy_into(b[i], a[i]);
  second.training.load_state_dict(first.training.state_dict());
  for (uint64_t i = 3; i < 6; ++i) second.step(i);
  CHECK(second.weights() == whole.weights());
  Steps without(policy_with(R"({"match": {"op": "linear"}, "weight": {"format": "e2m1",
       "scale": {"per": "block", "block": [1, 4], "rule": "rceil"}}})"));
  for (uint64_t i = 0; i < 6; ++i) without.step(i);
  CHECK(without.weights() != whole.weights());
}

TEST_CASE("a damaged average is refused") {
  Steps run(averaged);
  run.step(0);
  NamedTensors state = state_of(run);
  state["average.0/linear.0.weight1"] = ones({8, 6}, i64);
  CHECK_THROWS_AS(run.training.region().session->load_state_dict(state), UsageError);
}

TEST_CASE("files: averages are for weights") {
  const auto refusal = [](const std::string& role) {
    return refusal_of_rule('"' + role + R"(": {"like": "mxfp4", "average": 0.9})");
  };
  CHECK(refusal("weight") == "accepted");
  CHECK(refusal("weight.backward") == "accepted");
  CHECK(refusal("input") ==
        "/rules/0/input: an average over steps is for weights, and \"input\" is another tensor in "
        "each step. Use it for \"weight\" or \"weight.backward\".");
  CHECK_FALSE(refusal("grad_output") == "accepted");
  CHECK(refusal_of(R"("optimizer": {"parameters": {"like": "e4m3", "average": 0.9}})") ==
        "/optimizer/parameters: averages are for the weights of operations, not for what an "
        "optimizer keeps.");
  CHECK(refusal_of_quantizer(R"("like": "mxfp4", "average": 1.5)") ==
        "/quantizers/q: an average keeps the share 1.5 of itself in each step. Choose a number "
        "above 0 and below 1.");
}

}  // namespace
}  // namespace halftone::test::weight_averages_test
