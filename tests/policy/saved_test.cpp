// "saved": activations that wait for backward in 8 or 4 bits. Gradients are those of decoded
// activations, and the ledger counts the codes.
#include <doctest/doctest.h>

#include <halftone/amp/resolved.h>
#include <halftone/amp/training.h>
#include <halftone/autograd/engine.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/formats/coded_form.h>
#include <halftone/core/memory.h>
#include <halftone/nn/layers.h>
#include <halftone/optim/optimizers.h>

#include "policy/policy_cases.h"
#include "support.h"

namespace halftone::test::saved_test {
namespace {

Tensor there_and_back(CodedForm form, const Tensor& x) {
  Tensor blocks = coded_zeros(form, x.numel(), x.device()), y = empty_like(x);
  backend_for(x).encode_blocks(x, {}, {form, true}, blocks);
  backend_for(x).decode_blocks(blocks, {form, true}, y);
  return y;
}

/// A pass through one operation under a rule for it.
struct Saved {
  nn::Sequential model;
  optim::Sgd sgd;
  amp::Training training;
  Tensor x, y;

  template <class Layer>
  Saved(const std::string& rule, Layer layer, const Shape& shape, const char* base = "fp32")
      : model((manual_seed(1), std::move(layer)), nn::Linear(1, 1)),
        sgd(model.parameters(), {.lr = 0.1}),
        training(policy::read_text(R"({"halftone_policy": 1, "name": "t", "extends": ")" +
                                   std::string(base) + R"(", "rules": [{)" + rule + "}]}"),
                 model, sgd),
        x(numbers(shape, 2).set_requires_grad()) {}
  Tensor layer_weight() { return static_cast<nn::Linear&>(model[0]).weight; }
  Tensor seed() const { return numbers(y.shape(), 3).to(y.dtype()); }
  Tensor forward(const Tensor& in) {
    return training.forward([&](const Tensor& a) { return layer()(a); }, in);
  }
  nn::Layer& layer() { return static_cast<nn::Layer&>(model[0]); }
  void run() {
    y = forward(x);
    y.backward(seed());
  }
};

}  // namespace

TEST_CASE(
    "saved: a linear layer's weight gradient is of the decoded input, the rest is as before") {
  for (const CodedForm form :
       {CodedForm::e4m3, CodedForm::dynamic8, CodedForm::dynamic4, CodedForm::e4m3_expanded})
    for (const char* base : {"fp32", "amp-bf16"}) {
      CAPTURE(int(form));
      CAPTURE(base);
      Saved pass(R"("saved": ")" + std::string(name(form)) + "\"", nn::Linear(64, 80), {70, 64},
                 base);
      pass.run();
      const DType low = std::string_view(base) == "fp32" ? f32 : bf16;
      const NoGrad no_grad;
      const auto& layer = static_cast<nn::Linear&>(pass.model[0]);
      const Tensor x = cast(pass.x.detach(), low), w = cast(layer.weight.detach(), low),
                   dy = cast(pass.seed(), low);
      CHECK(floats(pass.y) == floats(linear(x, w, cast(layer.bias.detach(), low))));
      // Under autocast gradients leave their product in f32.
      Tensor dx = empty({70, 64}, f32), dweight = empty({80, 64}, f32);
      backend_for(dy).matmul(dy, w, {}, dx);
      CHECK(floats(pass.x.grad()) == floats(dx));
      const Tensor kept = there_and_back(form, x);
      CHECK(floats(kept) != floats(x));
      backend_for(dy).matmul(views::transpose(dy, 0, 1), kept, {}, dweight);
      CHECK(floats(layer.weight.grad()) == floats(dweight));
    }
}

TEST_CASE("saved: norms and activations read decoded tensors, small ones stay as they are") {
  const auto gradients = [](const std::string& rule, auto layer, const Shape& shape, bool by_hand) {
    Saved pass(rule, std::move(layer), shape);
    if (by_hand) pass.x = there_and_back(CodedForm::e4m3, pass.x.detach()).set_requires_grad();
    pass.run();
    return floats(pass.x.grad());
  };
  const std::string coded = R"("match": {"op": ["gelu", "gelu_erf", "silu"]}, "saved": "e4m3")";
  CHECK(gradients(coded, nn::Gelu(), {64, 64}, false) ==
        gradients(R"("saved": "plain")", nn::Gelu(), {64, 64}, true));
  CHECK(gradients(coded, nn::Silu(), {64, 64}, false) ==
        gradients(R"("saved": "plain")", nn::Silu(), {64, 64}, true));
  CHECK(gradients(coded, nn::Silu(), {63, 65}, false) ==
        gradients(R"("saved": "plain")", nn::Silu(), {63, 65}, false));  // 4,095 elements
  // A norm keeps its statistics in f32, from before.
  Saved norm(R"("match": {"op": "layer_norm"}, "saved": "e4m3")", nn::LayerNorm(64), {64, 64});
  Saved plain(R"("saved": "plain")", nn::LayerNorm(64), {64, 64});
  norm.run(), plain.run();
  CHECK(floats(norm.y) == floats(plain.y));
  const double change = max(abs(norm.x.grad() - plain.x.grad())).item();
  CHECK(change > 0);
  CHECK(change < 0.2);
}

TEST_CASE("saved: the ledger counts codes, once for a tensor that several operations saved") {
  const auto kept = [](const std::string& rule) {
    Saved pass(rule, nn::Linear(256, 8), {128, 256});
    const Tensor h = pass.x.detach().set_requires_grad();
    const int64_t before = memory_report().total_now;
    Tensor first, second;
    static_cast<void>(pass.training.forward(
        [&](const Tensor& in) {
          const Tensor inner = in * 2.0;  // saves nothing
          first = pass.layer()(inner), second = pass.layer()(inner);
          return first;
        },
        h));
    const int64_t results = first.bytes() + second.bytes();
    return memory_report().total_now - before - results;
  };
  constexpr int64_t elements = 128 * 256;
  CHECK(kept(R"("saved": "plain")") == elements * 4);
  CHECK(kept(R"("saved": "e4m3")") == elements / 256 * 260);
  CHECK(kept(R"("saved": "4bit")") == elements / 128 * 68);
}

TEST_CASE("saved: attention, whose operands are parts of one tensor") {
  manual_seed(3);
  Tensor qkv = randn({2, 32, 3 * 64}).set_requires_grad();
  nn::Sequential model{nn::Linear(2, 2)};
  optim::Sgd sgd(model.parameters(), {.lr = 0.1});
  const auto gradient = [&](const char* saved) {
    amp::Training training(
        policy::read_text(R"({"halftone_policy": 1, "name": "t", "extends": "fp32", "rules": [
          {"match": {"op": "scaled_dot_product_attention"}, "saved": ")" +
                          std::string(saved) + R"("}]})"),
        model, sgd);
    qkv.set_grad({});
    const Tensor y = training.forward(
        [&](const Tensor& in) {
          const auto part = [&](int64_t i) {
            return transpose(reshape(slice(in, 2, i * 64, (i + 1) * 64), {2, 32, 4, 16}), 1, 2);
          };
          return scaled_dot_product_attention(part(0), part(1), part(2));
        },
        qkv);
    y.backward(ones(y.shape()));
    return qkv.grad().clone();
  };
  const Tensor plain = gradient("plain"), coded = gradient("e4m3");
  const double change = max(abs(plain - coded)).item(), size = max(abs(plain)).item();
  CHECK(change > 0);
  CHECK(change < 0.1 * size);
}

TEST_CASE("saved: a training repeats, has second gradients, and refuses other words") {
  const std::string policy = policy_with(R"({"name": "all", "saved": "e4m3"})");
  const auto trained = [&] {
    Steps steps(policy, {6, 2048, 3});
    for (uint64_t i = 0; i < 3; ++i) steps.step(i);
    return steps.weights();
  };
  CHECK(trained() == trained());
  // A gradient with a history reads the same decoded numbers.
  Saved pass(R"("saved": "e4m3")", nn::Linear(64, 80), {70, 64});
  const Tensor y = pass.forward(pass.x), loss = sum(y * y);
  const std::vector<Tensor> both{pass.x, pass.layer_weight()};
  const auto plain = autograd::grad(loss, both, {.retain_graph = true});
  const auto recorded = autograd::grad(loss, both, {.create_graph = true});
  for (std::size_t i = 0; i < both.size(); ++i) CHECK(floats(plain[i]) == floats(recorded[i]));
  CHECK(autograd::grad(sum(recorded[0] * recorded[0]), both)[1].defined());
  CHECK(refusal_of_rule(R"("saved": "e5m2")") ==
        "/rules/0/saved: plain, 8bit, 8bit_linear, 4bit, e4m3 or e4m3_expanded, got \"e5m2\".");
  const amp::Policy read = policy::read_text(policy);
  CHECK(policy::read_text(policy::write(read)).rules == read.rules);
  Steps shown(policy, {6, 2048, 3});
  shown.step(0);
  CHECK(policy::resolved_table(policy::session_of(shown.training)).find("saved=e4m3") !=
        std::string::npos);
}

}  // namespace halftone::test::saved_test
