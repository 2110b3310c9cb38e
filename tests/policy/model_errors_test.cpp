// Entries of a policy file that a model does not support: errors that name policy, rule or site.
#include <doctest/doctest.h>

#include "policy/session_cases.h"
#include "support.h"

namespace halftone::test::model_errors_test {
namespace {

/// Returns the message of one pass, or of making the training, under a rule.
std::string message_of_pass(nn::Sequential model, const Tensor& x, const std::string& rules,
                            const std::string& more = "") {
  return message_of<UsageError>([&] {
    optim::Sgd sgd(model.parameters(), {.lr = 0.1});
    amp::Training training(policy::parse(policy_with(rules, more)), model, sgd);
    const Tensor y = training.forward([&](const Tensor& in) { return model(in); }, x);
    training.backward(mean(y * y));
    training.step();
  });
}

TEST_CASE("batch norm has no separate operands for backward") {
  CHECK(message_of_pass(nn::Sequential(nn::Linear(6, 4), nn::BatchNorm1d(4)), randn({5, 6}),
                        R"({"name": "values", "input": "e4m3", "input.backward": "e5m2"})") ==
        "[policy t] rule 0 (\"values\") at 1/batch_norm.0: batch_norm cannot be computed twice, so "
        "\"input.backward\" is not possible here. Leave it out of the rule, or except this "
        "place.");
}

TEST_CASE("an accumulator that a path or a class gives to a convolution") {
  CHECK(message_of_pass(nn::Sequential(nn::Conv2d(1, 2, 3)), randn({1, 1, 5, 5}),
                        R"({"match": {"asks": "low_precision"},
                            "accumulate": {"format": "e8m7"}})") ==
        "[policy t] 0/conv2d.0: conv2d has no emulated accumulator. linear and matmul do.");
}

TEST_CASE("TF32 in a place without TF32") {
  const auto under = [](const std::string& rule) {
    return message_of_pass(nn::Sequential(nn::Linear(6, 4), nn::Relu()), randn({5, 6}), rule);
  };
  CHECK(under(R"({"match": {"op": "linear"}, "compute": "tf32"})") ==
        "[policy t] 0/linear.0: cpu has no TF32. Use a CUDA device, or the policy tf32.json, which "
        "rounds operands to the same numbers on any.");
  CHECK(under(R"({"match": {"op": "relu"}, "compute": "tf32"})") ==
        "[policy t] 1/relu.0: relu has no products in TF32. conv2d, conv_transpose2d, "
        "linear and matmul do.");
  CHECK(under(R"({"match": {"op": "linear", "steps": [100, null]}, "compute": "tf32",
                  "accumulate": {"format": "e8m7"}})") ==
        "[policy t] 0/linear.0: an accumulator is emulated, and its factors are f32. Use "
        "\"compute\": \"f32\".");
}

TEST_CASE("parameters and states in a dtype that does not hold their grid") {
  const std::string says =
      "does not hold the grid e4m3, scaled per tensor for parameters and "
      "states. Extend a strategy that keeps them in f32.";
  const auto under = [](const char* optimizer, const char* more = "") {
    return message_of_pass(nn::Sequential(nn::Linear(6, 4)), randn({5, 6}), "",
                           R"(, "optimizer": {)" + std::string(optimizer) + "}" + more);
  };
  CHECK(under(R"("parameters": "fp8_tensor")", R"(, "weights": {"dtype": "bf16"})") ==
        "[policy t] bf16 " + says);
  CHECK(under(R"("parameters": "fp8_tensor")").empty());
}

}  // namespace
}  // namespace halftone::test::model_errors_test
