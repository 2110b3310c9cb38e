// A rulebook in use: operands and gradients are rounded at the sites of its rules, to the bit of a
// model written by hand. Nothing else changes; steps, passes, histories and states continue.
#include <cmath>
#include <stdexcept>

#include <doctest/doctest.h>

#include <halftone/amp/training.h>
#include <halftone/autograd/engine.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/module.h>
#include <halftone/nn/rnn.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>
#include <halftone/amp/policy.h>
#include <halftone/amp/probe.h>
#include <halftone/amp/rules.h>
#include <halftone/amp/session.h>

#include "policy/policy_cases.h"
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

TEST_CASE("without gradients, the operands of backward are not rounded") {
  Pass pass(
      policy_with(R"({"match": {"op": "linear"}, "weight": "e4m3", "weight.backward": "mxfp4"})"));
  const int64_t before = memory_report().now_of(MemoryUse::cast_cache);
  const NoGrad no_grad;
  const Tensor y = pass.training.forward([&](const Tensor& in) { return pass.model(in); }, pass.x);
  CHECK(floats(y) == floats(linear(pass.x, on(e4m3, pass.layer().weight), pass.layer().bias)));
  // One rounded tensor is kept.
  CHECK(memory_report().now_of(MemoryUse::cast_cache) - before == pass.layer().weight.bytes());
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
std::vector<float> trained(const amp::Policy& strategy, Options options) {
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
    return policy::read_text(policy_with(
        R"({"name": "everything", "compute": "f32", "result": "bf16", "input": "bf16",
            "weight": "bf16", "bias": "bf16", "output": "bf16", "grad_output": "bf16",
            "grad_input": "bf16", "grad_weight": "bf16"})",
        R"(, "optimizer": {"parameters": "bf16", "states": {)" + states + "}}"));
  };
  const amp::Policy native = amp::Policy::named("full-bf16");
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

// Sessions in unusual trainings: segments and parts without gradients, errors that are caught,
// sites that two modules share, nested regions, states that are loaded between rules. And rules
// that cannot be followed, which are reported before anything changed.

namespace halftone::test::session_faults_test {
namespace {

/// A step of an MLP whose whole forward pass is a checkpointed segment, or not.
double loss_of_step(Steps& steps, uint64_t number, bool checkpointed) {
  steps.training.zero_grad();
  const Tensor y = steps.training.forward(
      [&](const Tensor& x) {
        if (!checkpointed) return steps.model(x);
        return checkpoint([&](const std::vector<Tensor>& in) { return steps.model(in[0]); }, {x});
      },
      numbers({5, 6}, 10 + number));
  const Tensor loss = mean(y * y);
  steps.training.backward(loss);
  steps.training.step();
  return loss.item();
}

TEST_CASE(
    "elements that do not fill a group of a rotation are unchanged, for any contents of new "
    "memory") {
  for (const char* poison : {"nothing", "ones", "infinities"}) {
    INFO(poison);
    std::vector<Tensor> junk;
    for (int64_t n = 1; n < 64; ++n)
      if (poison != std::string("nothing"))
        junk.push_back(full({n}, poison == std::string("ones") ? 1.0 : HUGE_VAL));
    junk.clear();
    Steps steps(policy_with(R"({"match": {"op": "linear"}, "input": "mxfp4",
        "input.backward": {"like": "mxfp4", "hadamard": 16},
        "grad_output.weight": {"like": "mxfp4", "hadamard": 4}})"));
    CHECK(std::isfinite(loss_of_step(steps, 0, false)));
    static const std::vector<float> first = steps.weights();
    CHECK(steps.weights() == first);
  }
  // Columns 0 to 3 of each row are a group; 4 and 5 are not, and are rounded without rotation.
  const Quantizer rotated{.grid = formats::e4m3, .hadamard = 4};
  const Tensor y = quantized(full({3, 6}, 1.0), {.quantizer = rotated});
  CHECK(floats(y) == std::vector<float>(18, 1.0F));
}

TEST_CASE("a reference in evaluation applies to whole passes") {
  const std::string policy =
      policy_with(R"({"match": {"op": "linear"}, "input": "e2m1", "weight": "e2m1"})",
                  R"(, "evaluation": "reference")");
  Steps plain(policy), checkpointed(policy);
  for (uint64_t i = 0; i < 3; ++i)
    CHECK(loss_of_step(plain, i, false) == loss_of_step(checkpointed, i, true));
  CHECK(plain.weights() == checkpointed.weights());
  // A part that is frozen under NoGrad keeps its rules in a pass of training.
  const Tensor x = numbers({5, 6}, 3);
  const auto frozen = [&](Steps& steps) {
    return steps.training.forward(
        [&](const Tensor& in) {
          const NoGrad no_grad;
          return steps.model(in);
        },
        x);
  };
  CHECK(floats(frozen(plain)) ==
        floats(plain.training.forward([&](const Tensor& in) { return plain.model(in); }, x)));
}

TEST_CASE("operands without gradients in a training pass update their scales") {
  Steps steps(policy_with(delayed_policy));
  steps.training.zero_grad();
  const Tensor y = steps.training.forward(
      [&](const Tensor& x) {
        Tensor hidden;
        {
          const NoGrad no_grad;
          hidden = steps.model[0](x);
        }
        return steps.model[2](hidden);
      },
      numbers({5, 6}, 1));
  steps.training.backward(mean(y * y));
  steps.training.step();
  CHECK(policy::session_of(steps.training).state_dict().at("scale.0/linear.0.input").item() != 1);
}

TEST_CASE("a rule that matches nothing is an error of the first step, which changes nothing") {
  Steps steps(policy_with(R"({"name": "head", "match": {"path": "head.*"}, "input": "e4m3"})"));
  const std::vector<float> before = steps.weights();
  for (int i = 0; i < 2; ++i)
    CHECK_THROWS_WITH_AS(steps.step(0), doctest::Contains("rule 0 (\"head\") matches nothing"),
                         UsageError);
  CHECK(steps.weights() == before);
  Steps optional(
      policy_with(R"({"match": {"path": "head.*"}, "input": "e4m3", "optional": true})"));
  optional.step(0);
  // The model runs outside of the region.
  Steps outside(policy_with(R"({"match": {"path": "0"}, "input": "e4m3"})"));
  outside.training.backward(mean(outside.model(numbers({5, 6}, 1))));
  CHECK_THROWS_WITH_AS(outside.training.step(),
                       "[policy t] no operation has met its rules before the first step. Run the "
                       "model inside of training.forward().",
                       UsageError);
  // A rule whose steps come later matches.
  Steps later(policy_with(R"({"match": {"path": "0", "steps": [5, null]}, "input": "e4m3"})"));
  later.step(0);
}

TEST_CASE("a grid that its dtype cannot represent is refused, for every role") {
  const auto refusal = [](const std::string& rule) {
    Steps steps(
        R"({"halftone_policy": 1, "name": "t", "extends": "amp-bf16", "rules": [{"match": {"op": "linear"}, )" +
        rule + "}]}");
    try {
      steps.step(0);
    } catch (const UsageError& error) { return std::string(error.what()); }
    return std::string("accepted");
  };
  for (const char* role : {"input", "weight", "output", "grad_output", "grad_input", "grad_weight",
                           "input.backward", "weight.backward", "grad_output.weight", "bias"}) {
    INFO(role);
    const std::string entry = '"' + std::string(role) + "\": ";
    CHECK_MESSAGE(refusal(entry + "\"fp8_tensor\"").find("the grid of \"" + std::string(role)) !=
                      std::string::npos,
                  refusal(entry + "\"fp8_tensor\""));
    CHECK(refusal(entry + "\"fp8_tensor\", \"compute\": \"f32\"") == "accepted");
    CHECK(refusal(entry + "\"mxfp8\"") == "accepted");
  }
  // A result that is rounded to fewer bits leaves its grid.
  CHECK(refusal(R"("compute": "f32", "result": "bf16", "output": "fp8_tensor")")
            .find("the grid of \"output\"") != std::string::npos);
}

struct Normed {
  nn::Sequential model{nn::Linear(6, 4), nn::BatchNorm1d(4)};
  optim::Sgd sgd{model.parameters(), {.lr = 0.1}};
  amp::Training training;
  explicit Normed(const std::string& rules)
      : training(policy::read_text(policy_with(rules)), model, sgd) {}
  void step() {
    training.zero_grad();
    const Tensor y =
        training.forward([&](const Tensor& x) { return model(x); }, numbers({5, 6}, 1));
    training.backward(mean(y * y));
    training.step();
  }
};

TEST_CASE("after an error in a forward pass the session continues") {
  Normed normed(R"({"name": "values", "input": "e4m3", "input.backward": "e4m3"})");
  CHECK_THROWS_WITH_AS(
      normed.step(),
      "[policy t] rule 0 (\"values\") at 1/batch_norm.0: batch_norm cannot be "
      "computed twice, so \"input.backward\" is not possible here. Leave it out of "
      "the rule, or except this place.",
      UsageError);
  const auto sites = policy::session_of(normed.training).resolved();
  REQUIRE(sites.size() == 1);
  CHECK(name(sites[0].site) == "0/linear.0");
  Normed accumulates(R"({"match": {"path": "1"},
                         "accumulate": {"format": "bf16", "rounding": "nearest_even", "chunk": 0}})");
  CHECK_THROWS_WITH_AS(accumulates.step(), doctest::Contains("has no emulated accumulator"),
                       UsageError);
}

TEST_CASE("a rule of later steps that cannot be followed is refused before the first one") {
  Normed normed(R"({"match": {"op": "linear", "steps": [1, 2]}, "input": "e2m1"},
                   {"match": {"steps": [1, 2]}, "input.backward": "e4m3"})");
  const std::vector<float> before = floats(normed.model.parameters()[0]);
  CHECK_THROWS_AS(normed.step(), UsageError);
  CHECK(floats(normed.model.parameters()[0]) == before);
}

TEST_CASE("a training that is resumed in steps without rules continues with the same bits") {
  const auto with = [](const char* steps) {
    std::string rule = delayed_policy;
    return rule.insert(rule.find("\"op\": \"linear\"") + 14, std::string(", \"steps\": ") + steps);
  };
  const std::string policy = policy_with(with("[0, 2]") + ", " + with("[4, null]"));
  Steps whole(policy), first(policy), second(policy);
  for (uint64_t i = 0; i < 10; ++i) whole.step(i);
  for (uint64_t i = 0; i < 3; ++i) first.step(i);
  second.training.load_state_dict(first.training.state_dict());
  for (uint64_t i = 3; i < 10; ++i) second.step(i);
  CHECK(second.weights() == whole.weights());
}

TEST_CASE("scales of another policy with the same name are not loaded") {
  const auto policy = [](const char* format) {
    return policy_with(R"({"match": {"op": "linear"}, "input": {"format": ")" +
                       std::string(format) +
                       R"(", "scale": {"per": "tensor", "from": "history", "history": 4}}})");
  };
  Steps from(policy("e4m3")), other(policy("e2m1")), same(policy("e4m3"));
  for (uint64_t i = 0; i < 3; ++i) from.step(i);
  other.training.load_state_dict(from.training.state_dict());
  same.training.load_state_dict(from.training.state_dict());
  CHECK(other.weights() == from.weights());
  const std::string scale = "scale.0/linear.0.input";
  CHECK_FALSE(policy::session_of(other.training).state_dict().contains(scale));
  CHECK(policy::session_of(same.training).state_dict().at(scale).item() ==
        policy::session_of(from.training).state_dict().at(scale).item());
  CHECK(policy::session_of(other.training).state_dict().at("step").item() == 3);
}

TEST_CASE("a state whose session is refused changes nothing at all") {
  Steps from(policy_with(delayed_policy)), to(policy_with(delayed_policy)),
      plain(policy_with(delayed_policy));
  from.step(0);
  for (uint64_t i = 1; i < 3; ++i) to.step(i), plain.step(i);
  NamedTensors state = from.training.state_dict();
  state["session.step"] = full({}, -1, i64);
  CHECK_THROWS_AS(to.training.load_state_dict(state), UsageError);
  state = from.training.state_dict();
  state["optimizer.state.0.exp_avg"] = zeros({1});
  CHECK_THROWS_AS(to.training.load_state_dict(state), Error);
  for (uint64_t i = 3; i < 6; ++i) to.step(i), plain.step(i);
  CHECK(to.weights() == plain.weights());
}

TEST_CASE("an operand that backward uses as forward did is drawn once") {
  // y = W^T + b for x = I, and dx = W for dy = I: the same rounded W.
  Pass pass(policy_with(R"({"match": {"op": "linear"}, "input": "f32", "input.backward": "f32",
                            "weight": {"format": "e2m1", "rounding": "stochastic"}})"),
            5, 5);
  Tensor one = zeros({5, 5});
  for (int64_t i = 0; i < 5; ++i) one.data<float>()[6 * i] = 1;
  Tensor x = one.clone();
  x.set_requires_grad();
  const Tensor y = pass.training.forward([&](const Tensor& in) { return pass.model(in); }, x);
  y.backward(one);
  const NoGrad no_grad;
  const Tensor difference = abs(transpose(y - pass.layer().bias, 0, 1) - x.grad());
  CHECK(max(difference).item() < 1e-6);
}

TEST_CASE("a training inside a region without a session has its own passes") {
  Steps steps(policy_with(
      R"({"match": {"op": "linear"}, "input": {"format": "e2m1", "rounding": "stochastic"}})"));
  const Tensor x = numbers({5, 6}, 3);
  const auto draw = [&](Steps& of) {
    return floats(of.training.forward([&](const Tensor& in) { return of.model(in); }, x));
  };
  const amp::Autocast outer(amp::Region{.enabled = false});
  CHECK(draw(steps) != draw(steps));
  // Also inside another training's region.
  Steps other(policy_with(R"({"match": {"op": "linear"}, "input": "e4m3"})"));
  other.training.forward(
      [&](const Tensor& in) {
        CHECK(draw(steps) != draw(steps));
        return other.model(in);
      },
      x);
}

/// Two blocks that call one layer, which belongs to neither.
struct SharesGelu final : nn::Layer {
  nn::Linear linear{4, 4};
  Tensor forward(const Tensor& x) const override {
    static const nn::Gelu gelu("tanh");
    return gelu(linear(x));
  }
  void describe(nn::Fields& field) override { field("linear", linear); }
};

TEST_CASE("the site of a layer that no module names is that of its call") {
  nn::Sequential model((SharesGelu()), (SharesGelu()));
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(policy::read_text(policy_with(
                             R"({"match": {"op": "gelu", "path": "1.**"}, "output": "e2m1"})")),
                         model, sgd);
  training.forward([&](const Tensor& x) { return model(x); }, numbers({3, 4}, 1));
  std::vector<std::string> treated;
  for (const policy::ResolvedSite& site : policy::session_of(training).resolved())
    if (site.treatment->quantizes()) treated.push_back(name(site.site));
  CHECK(treated == std::vector<std::string>{"1/gelu.0"});
}

/// A site whose right operand is data first and a parameter later.
struct ChangesItsMind final : nn::Layer {
  nn::Parameter w{numbers({4, 4}, 1)};
  mutable bool by_weight = false;
  Tensor forward(const Tensor& x) const override { return matmul(x, by_weight ? Tensor(w) : x); }
  void describe(nn::Fields& field) override { field("w", w); }
};

TEST_CASE("an operand's role is its present one") {
  ChangesItsMind model;
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  amp::Training training(
      policy::read_text(policy_with(R"({"match": {"op": "matmul"}, "weight": "e2m1"})")), model,
      sgd);
  const Tensor x = numbers({4, 4}, 3);
  const auto run = [&] { return training.forward([&](const Tensor& in) { return model(in); }, x); };
  const NoGrad no_grad;
  CHECK(floats(run()) == floats(matmul(x, x)));
  model.by_weight = true;
  CHECK(floats(run()) == floats(matmul(x, quantize(model.w, "e2m1"))));
}

TEST_CASE("the random numbers of a parameter depend only on its name") {
  const std::string policy = policy_with(
      "", R"(, "optimizer": {"parameters": {"format": "e2m1", "rounding": "stochastic"}})");
  // Equal values under two names, at the start.
  nn::Sequential twins((manual_seed(1), nn::Linear(8, 8)), (manual_seed(1), nn::Linear(8, 8)));
  optim::Sgd all(twins.parameters(), {.lr = 0.1});
  const amp::Training training(policy::read_text(policy), twins, all);
  CHECK(floats(twins.parameters()[0]) != floats(twins.parameters()[2]));
  // Whether an optimizer has the first layer changes nothing for the second.
  const auto second_after_a_step = [&](bool with_first) {
    manual_seed(1);
    nn::Sequential model = nn::models::mlp({6, 6, 3});
    const std::vector<Tensor> parameters = model.parameters();
    optim::Sgd sgd(with_first ? parameters : std::vector(parameters.begin() + 2, parameters.end()),
                   {.lr = 0.1});
    amp::Training own(policy::read_text(policy), model, sgd);
    const Tensor y = own.forward([&](const Tensor& x) { return model(x); }, numbers({5, 6}, 2));
    own.backward(mean(y * y));
    own.step();
    return floats(parameters[2]);
  };
  CHECK(second_after_a_step(true) == second_after_a_step(false));
}

}  // namespace
}  // namespace halftone::test::session_faults_test

// Weights that are rounded once for several passes.

namespace halftone::test::rounded_weights_test {
namespace {

std::string rule_for(const std::string& grid, const std::string& strategy) {
  return R"({"halftone_policy": 1, "name": "t", "extends": ")" + strategy +
         R"(", "rules": [{"match": {"op": "linear"}, "input": "e4m3", "weight": )" + grid +
         R"(, "weight.backward": "mxfp4", "grad_output": "e5m2"}]})";
}

// Quantizers that draw, or depend on earlier steps.
const std::vector<std::string> changing = {
    R"({"format": "e2m1", "scale": {"per": "row"}, "rounding": "stochastic"})",
    R"({"format": "e4m3", "scale": {"per": "tensor", "from": "history", "history": 2}})",
    R"({"format": "int4", "scale": {"per": "row", "learned": {"gradient": "lsq"}}})",
    R"({"format": "e2m1", "average": 0.5})"};

/// The outputs of evaluations and the weights of three steps of two batches each. `fresh`: every
/// pass finds the weights just written, so nothing that was kept is of use.
std::vector<float> results(const std::string& policy, bool fresh) {
  Steps steps(policy);
  std::vector<float> all;
  const auto pass = [&](uint64_t seed) {
    if (fresh)
      for (const Tensor& w : steps.model.parameters()) mark_written(w);
    return steps.training.forward([&](const Tensor& x) { return steps.model(x); },
                                  numbers({5, 6}, seed));
  };
  for (uint64_t step = 0; step < 3; ++step) {
    steps.training.zero_grad();
    for (uint64_t batch = 0; batch < 2; ++batch) {
      const Tensor y = pass(10 * step + batch);
      steps.training.backward(mean(y * y) * 0.5);
    }
    steps.training.step();
    const NoGrad no_grad;
    for (int i = 0; i < 2; ++i)
      for (const float y : floats(pass(99))) all.push_back(y);
  }
  for (const float w : steps.weights()) all.push_back(w);
  return all;
}

TEST_CASE("weights that are rounded once a version change no bit") {
  const auto check = [](const std::string& policy) {
    INFO(policy);
    CHECK(results(policy, false) == results(policy, true));
  };
  for (const char* grid : {"\"e4m3\"", "\"mxfp4\""}) check(rule_for(grid, "amp-bf16"));
  for (const char* grid : {"\"nvfp4\"", "\"fp8_tensor\""}) check(rule_for(grid, "fp32"));
  for (const std::string& grid : changing) check(rule_for(grid, "fp32"));
}

/// The bytes that rounded weights take, as the ledger has them between passes.
int64_t kept() { return memory_report().now_of(MemoryUse::cast_cache); }

TEST_CASE("rounded weights are kept in evaluation, and where a step has several batches") {
  const int64_t before = kept(), bytes = 4 * (6 * 8 + 8 * 3);
  Steps steps(policy_with(R"({"match": {"op": "linear"}, "weight": "mxfp4"})"));
  const auto pass = [&](uint64_t seed) {
    return steps.training.forward([&](const Tensor& x) { return steps.model(x); },
                                  numbers({5, 6}, seed));
  };
  const auto evaluate = [&] {
    const NoGrad no_grad;
    return floats(pass(1));
  };
  const auto batch = [&](uint64_t seed) {
    const Tensor y = pass(seed);
    steps.training.backward(mean(y * y));
  };
  const std::vector<float> first = evaluate();
  CHECK(kept() - before == bytes);
  CHECK(evaluate() == first);
  batch(2);  // steps of one batch keep nothing
  CHECK(kept() == before);
  batch(3);
  steps.training.step();
  batch(4);  // this step may have two batches as well
  CHECK(kept() - before == bytes);
  batch(5);
  steps.training.step();
  CHECK(kept() == before);
  // A weight that is written, and one whose memory another tensor has.
  evaluate();
  Tensor w = steps.model.parameters()[0];
  copy_into(w, w.detach() * -3);
  const std::vector<float> written = evaluate();
  CHECK(written != first);
  w.body()->storage = w.clone().storage();
  CHECK(evaluate() == written);
  CHECK(kept() - before == bytes);
}

TEST_CASE("rounded weights are not kept where they may change unseen") {
  const int64_t before = kept();
  for (const std::string& grid : changing) {
    INFO(grid);
    Steps steps(policy_with(R"({"match": {"op": "linear"}, "weight": )" + grid + "}"));
    const NoGrad no_grad;
    steps.training.forward([&](const Tensor& x) { return steps.model(x); }, numbers({5, 6}, 1));
    CHECK(kept() == before);
  }
  // Another program's memory.
  Pass pass(policy_with(R"({"match": {"op": "linear"}, "weight": "e4m3"})"));
  Tensor& w = pass.layer().weight;
  std::vector<float> numbers = floats(w);
  w.body()->storage = std::make_shared<Storage>(reinterpret_cast<std::byte*>(numbers.data()),
                                                w.bytes(), std::make_shared<int>());
  const NoGrad no_grad;
  const auto y = [&] {
    return floats(pass.training.forward([&](const Tensor& x) { return pass.model(x); }, pass.x));
  };
  const std::vector<float> first = y();
  for (float& number : numbers) number *= 2;
  CHECK(y() != first);
}

}  // namespace
}  // namespace halftone::test::rounded_weights_test
