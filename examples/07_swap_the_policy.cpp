// Lesson 7: casting policies as an experiment. You will run one batch through a small attention
// block under published lists and under lists of your own, and see what each decision costs in
// accuracy: the error of the loss and of the gradients against f64.
#include <cmath>
#include <iostream>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;
using ht::amp::CastClass;

namespace {

/// Tokens attend to each other, are normalised and classified: products, a softmax, norms, a loss.
struct Block final : ht::nn::Module {
  ht::nn::Linear query{64, 64}, key{64, 64}, value{64, 64}, head{64, 10};
  ht::nn::LayerNorm norm{64};
  void describe(ht::nn::Fields& field) override {
    field("query", query), field("key", key), field("value", value);
    field("norm", norm), field("head", head);
  }
  // x: [batch, tokens, 64]; the loss of the means over tokens
  ht::Tensor loss(const ht::Tensor& x, const ht::Tensor& labels) const {
    const ht::Tensor scores = ht::matmul(query(x), ht::transpose(key(x), 1, 2)) * 0.125;
    const ht::Tensor mixed = ht::matmul(ht::softmax(scores, -1), value(x));
    const ht::Tensor pooled = ht::sum(norm(x + mixed), {1}) * (1.0 / double(x.size(1)));
    return ht::cross_entropy(head(pooled), labels);
  }
};

struct Setup {
  Block block;
  ht::Tensor x, labels;
  double loss = 0;                    // in f64
  std::vector<ht::Tensor> gradients;  // in f64

  Setup() {
    ht::manual_seed(0);
    ht::nn::init::xavier_uniform(block.query.weight),
        ht::nn::init::xavier_uniform(block.key.weight);
    x = ht::randn({8, 32, 64}), labels = ht::randint(0, 10, {8});
    block.to(ht::f64);
    const ht::Tensor exact = block.loss(ht::cast(x, ht::f64), labels);
    exact.backward();
    loss = exact.item();
    for (const ht::Tensor& p : block.parameters()) gradients.push_back(p.grad());
    block.to(ht::f32);
  }

  /// |got - exact| / |exact| over all gradients as one vector.
  double gradient_error() const {
    double error = 0, size = 0;
    const std::vector<ht::Tensor> parameters = block.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const ht::Tensor difference = ht::cast(parameters[i].grad(), ht::f64) - gradients[i];
      error += ht::sum(ht::square(difference)).item();
      size += ht::sum(ht::square(gradients[i])).item();
    }
    return std::sqrt(error / size);
  }
};

void title(const std::string& text) { std::cout << "\n--- " << text << "\n\n"; }

void run(Setup& setup, const std::string& what, const ht::amp::Region& region) {
  setup.block.zero_grad();
  ht::amp::PrecisionLog log;
  try {
    const ht::Tensor loss =
        ht::amp::autocast(region, [&] { return setup.block.loss(setup.x, setup.labels); });
    loss.backward();
    std::printf("%-44s %10.2e %10.2e %8ld %8.1f\n", what.c_str(),
                std::abs(loss.item() - setup.loss) / setup.loss, setup.gradient_error(),
                long(log.total().casts), double(log.total().bytes) / 1024);
  } catch (const ht::Error& error) { std::printf("%-44s %s\n", what.c_str(), error.what()); }
}

void header() {
  std::printf("%-44s %10s %10s %8s %8s\n", "", "loss", "gradient", "casts", "KiB cast");
}

/// A policy that looks at tensors: small products are not worth their casts, and stay f32.
struct LargeProductsOnly final : ht::amp::Policy {
  ht::amp::CastDecision decide(const ht::OpInfo& op,
                               std::span<const ht::Tensor> inputs) const override {
    const ht::amp::CastDecision usual = Policy::decide(op, inputs);
    if (usual.cast_class != CastClass::low_precision || inputs[0].numel() >= 4096) return usual;
    return CastClass::full_precision;
  }
};

}  // namespace

int main() {
  Setup setup;
  title("published lists, bf16; errors against f64");
  header();
  run(setup, "no autocast (f32)", {.enabled = false});
  for (const std::string_view name : ht::amp::Policy::preset_names())
    run(setup, std::string(name), ht::amp::Policy::preset(name).with(ht::bf16));

  title("one decision at a time, from pytorch-cuda");
  header();
  const ht::amp::Policy standard;
  run(setup, "pytorch-cuda", standard.with(ht::bf16));
  for (const std::string_view op : {"softmax", "layer_norm", "sum", "cross_entropy"}) {
    ht::amp::Policy policy = standard;
    policy[op] = CastClass::low_precision;
    run(setup, std::string(op) + " in bf16, too", policy.with(ht::bf16));
  }
  for (const std::string_view op : {"linear", "matmul"}) {
    ht::amp::Policy policy = standard;
    policy[op] = CastClass::full_precision;
    run(setup, std::string(op) + " in f32", policy.with(ht::bf16));
  }

  title("a policy that looks at the inputs");
  header();
  run(setup, "large products only",
      {.policy = std::make_shared<LargeProductsOnly>(), .dtype = ht::bf16});

  title("the same list, the other format");
  header();
  run(setup, "bf16", standard.with(ht::bf16));
  run(setup, "f16", standard.with(ht::f16));
  std::cout << "\nf16 has three bits more of fraction and wins where nothing leaves its range: "
               "lesson 8.\n";
  return after_output();
}
