// Lesson 18: from a suspicion to a layer. You will see a probe that counts what each rounding of a
// training loses, an explanation of a skipped step, and a search for the layers that can use four
// bits. The same questions about whole models are commands: halftone-lab run, explain and search.
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;

namespace {

struct Batch {
  ht::Tensor x, wanted;
};

/// A model of four linear layers that learns the outputs of another one. The first input column is
/// 500 times as large as the others: a feature that was not standardized.
struct Work {
  ht::nn::Sequential model, teacher;
  ht::optim::AdamW adamw;
  Work()
      : model((ht::manual_seed(0), ht::nn::models::mlp({16, 64, 64, 64, 4}))),
        teacher(ht::nn::models::mlp({16, 32, 4})),
        adamw(model.parameters(), {.lr = 3e-3}) {}
  Batch batch() const {
    const ht::NoGrad no_grad;
    const ht::Tensor x = ht::randn({64, 16}), column = ht::arange(0, 16, 1) < 1;
    return {ht::where(column, x * 500.0, x), teacher(x)};
  }
  ht::Tensor loss(ht::amp::Training& training, const Batch& batch) const {
    return ht::mse(training.forward(model, batch.x), batch.wanted);
  }
  void step(ht::amp::Training& training) const {
    training.zero_grad();
    training.backward(loss(training, batch()));
    training.step();
  }
};

/// A policy that extends fp32 by one rule for each of the given layers.
ht::amp::Policy policy_of(const std::string& input, const std::string& weight,
                          const std::string& gradient, const std::vector<int>& layers) {
  std::string rules;
  for (const int layer : layers)
    rules += std::string(rules.empty() ? "" : ",") + R"({"match": {"op": "linear", "path": ")" +
             std::to_string(2 * layer) + R"("}, "input": ")" + input + R"(", "weight": ")" +
             weight + R"(", "grad_output": ")" + gradient + R"("})";
  return ht::policy::read_text(
      R"({"halftone_policy": 1, "name": "try", "extends": "fp32", "rules": [)" + rules + "]}",
      "try.json");
}

void probe() {
  std::printf("1. probe: e4m3 without scales, 60 steps, every twentieth observed\n\n");
  Work work;
  ht::amp::Training training =
      ht::amp::apply(policy_of("e4m3", "e4m3", "e5m2", {0, 1, 2, 3}), work.model, work.adamw);
  const ht::policy::Probe probe(training, {.every = 20, .updates = false});
  for (int step = 0; step < 60; ++step) work.step(training);
  std::printf("%-14s %-12s %10s %10s %10s\n", "layer", "tensor", "to 0", "saturated", "dB");
  for (const ht::policy::ProbeRow& row : probe.rows())
    if (row.step == 40 && !row.quantizer.empty())
      std::printf("%-14s %-12s %8.2f %% %8.2f %% %10.1f\n", row.site.c_str(),
                  std::string(ht::policy::name(row.role)).c_str(), 100 * row.survey.underflow(),
                  100 * row.survey.saturation(), row.survey.sqnr());
  std::printf(
      "\nThe inputs of layer 0 saturate: the large column, which is most of the signal. Gradients "
      "get\n"
      "smaller toward layer 0, and without a scale a third of them becomes 0 there. The other "
      "tensors\n"
      "have what e4m3 and e5m2 can give: about 31 and 25 dB.\n");
}

void explain() {
  std::printf("\n2. explain: f16 with a loss scale of 2^20\n\n");
  Work work;
  ht::amp::Policy strategy = ht::amp::Policy::named("amp-fp16");
  strategy.loss_scale.init_scale = 0x1p20;
  ht::amp::Training training = ht::amp::apply(strategy, work.model, work.adamw);
  const Batch batch = work.batch();
  training.backward(work.loss(training, batch));
  if (training.step()) return;
  const auto why =
      ht::policy::explain_overflow(training, [&] { return work.loss(training, batch); });
  if (why) std::cout << *why << '\n';
}

/// The gradients of one batch, as one vector.
ht::Tensor gradient_under(const ht::amp::Policy& strategy) {
  Work work;
  ht::amp::Training training = ht::amp::apply(strategy, work.model, work.adamw);
  training.backward(work.loss(training, work.batch()));
  std::vector<ht::Tensor> parts;
  for (const ht::Tensor& p : work.model.parameters())
    parts.push_back(ht::reshape(ht::cast(p.grad(), ht::f64), {p.numel()}));
  return ht::cat(parts, 0);
}

double size(const ht::Tensor& x) { return std::sqrt(ht::sum(ht::square(x)).item()); }

void search() {
  std::printf("\n3. search: which layers can use mxfp4? Error of the gradient of one batch\n\n");
  const ht::Tensor exact = gradient_under(ht::amp::Policy::named("fp32"));
  const auto error = [&](const std::vector<int>& layers) {
    const ht::Tensor got = gradient_under(policy_of("mxfp4", "mxfp4", "mxfp4", layers));
    return size(got - exact) / size(exact);
  };
  std::vector<std::pair<double, int>> alone;
  for (int layer = 0; layer < 4; ++layer) {
    alone.emplace_back(error({layer}), layer);
    std::printf("  layer %d alone            %.3f\n", layer, alone.back().first);
  }
  std::ranges::sort(alone);
  std::printf("\n  the cheapest first        %10s %10s\n", "predicted", "measured");
  std::vector<int> chosen;
  double squares = 0;
  for (const auto& [of_layer, layer] : alone) {
    chosen.push_back(layer), squares += of_layer * of_layer;
    std::string names;
    for (const int c : chosen) names += " " + std::to_string(c);
    std::printf("  layers%-20s %10.3f %10.3f\n", names.c_str(), std::sqrt(squares), error(chosen));
  }
  std::printf(
      "\nErrors of different layers are nearly independent, so that their squares add up (lesson "
      "14).\n"
      "One measurement per layer therefore ranks all combinations, and the best are measured.\n");
}

}  // namespace

int main() {
  omp_set_num_threads(1);  // the tensors are small
  probe();
  explain();
  search();
  return after_output();
}

// Conclusion. A probe says what each rounding loses, an explanation says which tensor made a step
// fail, and a search says where fewer bits cost least. All three ask single tensors. A difference
// in the final loss answers none of these questions.
//
// Exercises
// 1 (predict). Divide the first input column by 500 in batch(). Which rows of the probe change?
// 2 (predict). Which loss scale is the largest that works here? Then read the line of explain.
// 3 (implement). Rank the roles in place of the layers: inputs, weights, gradients of all four.
// 4 (design). You may keep one of twelve layers in bf16 and have 5 minutes of computing time. Plan
//   the measurements, then compare with `halftone-lab search --help`.
