// A rulebook in use: operands and gradients are rounded at the sites of its rules, to the bit of a
// model written by hand. Nothing else changes; steps, passes, histories and states continue.
#include <doctest/doctest.h>

#include <cmath>

#include <halftone/amp/training.h>
#include <halftone/autograd/checkpoint.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>
#include <halftone/optim/optim.h>
#include <halftone/policy/policy.h>
#include <halftone/policy/treated_op.h>

#include "policy/session_cases.h"
#include "support.h"

namespace halftone::test::session_test {
namespace {

const Quantizer e4m3 = *quantizer_named("e4m3"), e5m2 = *quantizer_named("e5m2"),
                tensor_wide = *quantizer_named("fp8_tensor");

Tensor on(const Quantizer& quantizer, const Tensor& x) {
  return quantized(x.detach(), {.quantizer = quantizer});
}

TEST_CASE("operands, result and gradients of a linear layer are those written by hand") {
  Pass pass(policy_with(R"({"name": "all", "match": {"op": "linear"}, "input": "e4m3",
    "weight": "fp8_tensor", "output": "bf16", "grad_output": "e5m2", "grad_input": "bf16",
    "grad_weight": "e4m3"})"));
  pass.run();
  const NoGrad no_grad;
  const Tensor x = on(e4m3, pass.x), w = on(tensor_wide, pass.layer().weight),
               b = pass.layer().bias.detach(), dy = on(e5m2, pass.seed());
  CHECK(floats(pass.y) == floats(on(*quantizer_named("bf16"), linear(x, w, b))));
  CHECK(floats(pass.x.grad()) == floats(on(*quantizer_named("bf16"), matmul(dy, w))));
  CHECK(floats(pass.layer().weight.grad()) == floats(on(e4m3, matmul(transpose(dy, 0, 1), x))));
  // From the gradient before rounding; grad_weight includes biases.
  CHECK(floats(pass.layer().bias.grad()) == floats(on(e4m3, sum(pass.seed(), {0}))));
}

TEST_CASE("backward uses operands and gradients of its own if a rule says so") {
  Pass pass(policy_with(R"({"match": {"op": "linear"}, "input": "e4m3", "weight": "e4m3",
    "grad_output": "e5m2", "input.backward": "e2m1", "weight.backward": "e5m2",
    "grad_output.weight": "e4m3"})"));
  pass.run();
  const NoGrad no_grad;
  const Tensor dy = pass.seed();
  CHECK(floats(pass.y) == floats(linear(on(e4m3, pass.x), on(e4m3, pass.layer().weight),
                                        pass.layer().bias.detach())));
  CHECK(floats(pass.x.grad()) == floats(matmul(on(e5m2, dy), on(e5m2, pass.layer().weight))));
  CHECK(floats(pass.layer().weight.grad()) ==
        floats(matmul(transpose(on(e4m3, dy), 0, 1), on(*quantizer_named("e2m1"), pass.x))));
}

TEST_CASE("blocks are along the dimension that a product sums over") {
  const std::string tile =
      R"({"format": "e4m3", "scale": {"per": "block", "block": [1, 4], "format": "f32"}})";
  Pass pass(policy_with(R"({"match": {"op": "linear"}, "grad_output.weight": )" + tile +
                        R"(, "input.backward": )" + tile + "}"),
            8, 5);
  pass.run();
  const NoGrad no_grad;
  Quantizer quantizer = *quantizer_named("fp8_block");
  quantizer.scaling.columns = 4;
  const auto along_tokens = [&](const Tensor& x) {
    return on(quantizer, transpose(x.detach(), 0, 1));  // [features, tokens]
  };
  CHECK(floats(pass.layer().weight.grad()) ==
        floats(matmul(along_tokens(pass.seed()), transpose(along_tokens(pass.x), 0, 1))));
}

TEST_CASE("a gradient passes a saturated element as any other") {
  Pass pass(policy_with(R"({"match": {"op": "linear"}, "input": "e2m1"})"));
  pass.x = (pass.x.detach() * 1e6).set_requires_grad();
  pass.run();
  const NoGrad no_grad;
  CHECK(floats(pass.x.grad()) == floats(matmul(pass.seed(), pass.layer().weight.detach())));
}

TEST_CASE("compute and result are casts; rules without settings change no bit") {
  Pass plain(policy_with(R"({"match": {"op": "linear", "path": "none.**"}, "input": "e4m3",
                             "optional": true})")),
      low(policy_with(R"({"match": {"op": "linear"}, "compute": "bf16", "result": "f32"})"));
  plain.run(), low.run();
  const NoGrad no_grad;
  const Tensor w = plain.layer().weight.detach(), b = plain.layer().bias.detach();
  CHECK(floats(plain.y) == floats(linear(plain.x.detach(), w, b)));
  CHECK(low.y.dtype() == f32);
  CHECK(floats(low.y) ==
        floats(cast(linear(cast(low.x.detach(), bf16), cast(w, bf16), cast(b, bf16)), f32)));
}

TEST_CASE("an accumulator applies to all three products") {
  const std::string rule =
      R"({"match": {"op": "linear"}, "accumulate": {"format": "e8m7", "rounding": "toward_zero"}})";
  Pass pass(policy_with(rule)), plain(policy_with(""));
  pass.run(), plain.run();
  CHECK(floats(pass.y) != floats(plain.y));
  CHECK(floats(pass.x.grad()) != floats(plain.x.grad()));
  CHECK(floats(pass.layer().weight.grad()) != floats(plain.layer().weight.grad()));
  for (std::size_t i = 0; i < 20; ++i)
    CHECK(floats(pass.y)[i] == doctest::Approx(floats(plain.y)[i]).epsilon(0.2));
}

// --- schedules, passes, histories

TEST_CASE("rules of steps begin and end at their steps") {
  const std::string rule = R"({"match": {"op": "linear", "steps": [1, 2]}, "input": "e2m1"})";
  Steps scheduled(policy_with(rule)), plain(policy_with(""));
  scheduled.step(0), plain.step(0);
  CHECK(scheduled.weights() == plain.weights());
  scheduled.step(1), plain.step(1);
  CHECK(scheduled.weights() != plain.weights());
  plain.training.load_state_dict(scheduled.training.state_dict());
  scheduled.step(2), plain.step(2);
  CHECK(scheduled.weights() == plain.weights());
}

TEST_CASE("delayed scaling follows the published rule, infinity and margin included") {
  for (const int margin : {0, 1}) {
    policy::TensorScales scales;
    Quantizer delayed{.grid = formats::e4m3, .scaling = Scaling::delayed(3)};
    delayed.scaling.margin = margin;
    const double shrink = margin == 0 ? 1 : 0.5;
    float scale = 1;
    std::vector<double> seen;
    for (const double magnitude : {4.0, 2.0, 1.0, 0.5, HUGE_VAL, 8.0}) {
      CAPTURE(magnitude);
      const Tensor x = full({7}, -magnitude);
      const Tensor used = scales.scale_for("x", delayed, x, true);
      CHECK(used.item() == scale);
      // Micro-batches of one step: the largest counts.
      scales.scale_for("x", delayed, full({3}, magnitude / 2), true);
      scales.scale_for("x", delayed, full({3}, 1e9), false);
      scales.end_step();
      if (std::isfinite(magnitude)) seen.push_back(magnitude);
      double largest = 0;
      for (std::size_t i = seen.size() > 3 ? seen.size() - 3 : 0; i < seen.size(); ++i)
        largest = std::max(largest, seen[i]);
      scale = float(float(448 / largest) * shrink);
    }
  }
}

TEST_CASE("a training that is saved and loaded continues with the same bits") {
  const TemporaryDirectory directory;
  Steps whole(policy_with(delayed_policy)), first(policy_with(delayed_policy)),
      second(policy_with(delayed_policy));
  for (uint64_t i = 0; i < 6; ++i) whole.step(i);
  for (uint64_t i = 0; i < 3; ++i) first.step(i);
  first.training.save(directory.path() / "state.safetensors");
  second.training.load(directory.path() / "state.safetensors");
  for (uint64_t i = 3; i < 6; ++i) second.step(i);
  CHECK(second.weights() == whole.weights());
  NamedTensors state = first.training.state_dict();
  state.erase("session.pass");
  CHECK_THROWS_AS(second.training.load_state_dict(state), UsageError);
}

TEST_CASE("the random numbers of one layer do not depend on another layer's rules") {
  const auto rule = [](const std::string& path, const std::string& what) {
    return R"({"match": {"op": "linear", "path": ")" + path + R"("}, )" + what + "}";
  };
  const std::string drawn = R"("grad_weight": {"format": "e4m3", "rounding": "stochastic"})";
  Steps one(policy_with(rule("2", drawn))),
      other(policy_with(rule("0", drawn) + ", " + rule("2", drawn)));
  one.step(0), other.step(0);
  const auto last = [](Steps& s) { return floats(s.model.parameters()[2].grad()); };
  const auto first = [](Steps& s) { return floats(s.model.parameters()[0].grad()); };
  CHECK(last(one) == last(other));
  CHECK(first(one) != first(other));
}

TEST_CASE("a checkpointed segment is treated equally, including random numbers") {
  const std::string text = policy_with(
      R"({"match": {"op": "linear"}, "input": {"format": "e4m3", "rounding": "stochastic",
         "scale": {"per": "tensor", "from": "history", "history": 2}},
         "grad_output": {"format": "e5m2", "rounding": "stochastic"}})");
  Steps plain(text), checkpointed(text);
  for (uint64_t i = 0; i < 3; ++i) {
    plain.step(i);
    checkpointed.training.zero_grad();
    const Tensor x = numbers({5, 6}, 10 + i);
    const Tensor y = checkpointed.training.forward(
        [&](const Tensor& in) {
          return checkpoint(
              [&](const std::vector<Tensor>& inputs) { return checkpointed.model(inputs[0]); },
              {in});
        },
        x);
    checkpointed.training.backward(mean(y * y));
    checkpointed.training.step();
    CHECK(plain.weights() == checkpointed.weights());
  }
}

TEST_CASE("a segment that runs again belongs to its own pass, although another has begun since") {
  const std::string text = policy_with(
      R"({"match": {"op": "linear"}, "input": {"format": "e4m3", "rounding": "stochastic"}})");
  const auto gradients = [&](bool checkpoints) {
    Steps run(text);
    std::vector<Tensor> losses;
    for (const uint64_t i : {20u, 21u}) {
      const Tensor y = run.training.forward(
          [&](const Tensor& in) {
            if (!checkpoints) return run.model(in);
            return checkpoint([&](const std::vector<Tensor>& x) { return run.model(x[0]); }, {in});
          },
          numbers({5, 6}, i));
      losses.push_back(mean(y * y));
    }
    for (const Tensor& loss : losses) run.training.backward(loss);
    return floats(run.model.parameters()[0].grad());
  };
  CHECK(gradients(true) == gradients(false));
}

TEST_CASE("evaluation: the same treatment, or none, and no state changes") {
  const std::string rule = R"({"match": {"op": "linear"}, "input": "e2m1"})";
  Steps same(policy_with(rule)), reference(policy_with(rule, R"(, "evaluation": "reference")")),
      plain(policy_with(""));
  const Tensor x = numbers({5, 6}, 77);
  const auto evaluated = [&](Steps& s) {
    const NoGrad no_grad;
    return floats(s.training.forward([&](const Tensor& in) { return s.model(in); }, x));
  };
  CHECK(evaluated(same) != evaluated(plain));
  CHECK(evaluated(reference) == evaluated(plain));
  CHECK(floats(same.training.forward([&](const Tensor& in) { return same.model(in); }, x)) ==
        evaluated(same));
}

// --- emulation is exact

template <class Optimizer, class Options>
std::vector<float> trained(const amp::Strategy& strategy, Options options) {
  manual_seed(9);
  nn::Sequential model = nn::models::mlp({6, 16, 3});
  Optimizer optimizer(model.parameters(), options);
  amp::Training training(strategy, model, optimizer);
  for (uint64_t i = 0; i < 500; ++i) {
    training.zero_grad();
    const Tensor x = numbers({8, 6}, 100 + i), wanted = numbers({8, 3}, 1000 + i);
    const Tensor y = training.forward([&](const Tensor& in) { return model(in); }, x);
    training.backward(mse(y, wanted));
    training.step();
  }
  std::vector<float> all;
  for (const Tensor& p : model.parameters())
    for (const float v : floats(p)) all.push_back(v);
  return all;
}

TEST_CASE("emulated bf16 is native bf16, bit for bit, after 500 steps") {
  // Every product in f32, every tensor on the bf16 grid, results rounded to bf16. On the reference
  // backend: products of bf16 run in another order than those of f32 if a CPU has instructions for
  // them.
  const CpuBackendScope reference("reference");
  const auto emulated = [](const std::string& states) {
    return policy::parse(policy_with(
        R"({"name": "everything", "compute": "f32", "result": "bf16", "input": "bf16",
            "weight": "bf16", "bias": "bf16", "output": "bf16", "grad_output": "bf16",
            "grad_input": "bf16", "grad_weight": "bf16"})",
        R"(, "optimizer": {"parameters": "bf16", "states": {)" + states + "}}"));
  };
  const amp::Strategy native = amp::Strategy::named("full-bf16");
  const optim::SgdOptions momentum{.lr = 0.05, .momentum = 0.9};
  CHECK(trained<optim::Sgd>(emulated(R"("momentum_buffer": "bf16")"), momentum) ==
        trained<optim::Sgd>(native, momentum));
  CHECK(trained<optim::Sgd>(emulated(""), momentum) != trained<optim::Sgd>(native, momentum));
  const optim::AdamWOptions options{.lr = 1e-2};
  const std::string both = R"("exp_avg": "bf16", "exp_avg_sq": "bf16")";
  CHECK(trained<optim::AdamW>(emulated(both), options) == trained<optim::AdamW>(native, options));
}

}  // namespace
}  // namespace halftone::test::session_test
