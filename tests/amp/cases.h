// An optimizer as a user writes it: it uses f32 parameters and has no code for backends or masters.
#pragma once

#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

namespace halftone::test {

/// p -= lr g, by hand.
struct OwnOptimizer final : optim::Optimizer {
  std::vector<Tensor> own;
  double rate = 0.5;
  explicit OwnOptimizer(std::vector<Tensor> p) : own(std::move(p)) {}
  void step(const optim::StepControl& control = {}) override {
    if (!begin_step(control)) return;
    for (Tensor& p : own) {
      if (!p.grad().defined()) continue;
      REQUIRE(p.dtype() == f32);
      for (int64_t i = 0; i < p.numel(); ++i)
        p.data<float>()[i] -= float(rate) * p.grad().data<float>()[i];
      p.storage()->bump_version();
    }
  }
  int group_count() const override { return 1; }
  std::span<Tensor> group_parameters(int) override { return own; }
  double lr(int) const override { return rate; }
  void set_lr(double lr, int) override { rate = lr; }
  optim::NamedTensors state_dict() const override { return {}; }
  void load_state_dict(const optim::NamedTensors&) override {}
};

// A small MLP under a strategy, on fixed data, for the tests of amp/.

inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const Tensor x = a.clone(), y = b.clone();
  return std::memcmp(x.raw_data(), y.raw_data(), std::size_t(x.bytes())) == 0;
}

/// Returns whether two dictionaries have the same names, dtypes, shapes and bits.
inline bool same_state(const optim::NamedTensors& a, const optim::NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, x] : a) {
    const auto other = b.find(name);
    if (other == b.end() || !same_bits(x, other->second)) {
      MESSAGE("they differ in ", name);
      return false;
    }
  }
  return true;
}

inline optim::NamedTensors copy_of(const optim::NamedTensors& state) {
  optim::NamedTensors copy;
  for (const auto& [name, x] : state) copy[name] = x.clone();
  return copy;
}

/// Linear 24-40-10 with ReLU (1,410 parameters), AdamW, 32 samples.
struct StrategyCase {
  std::unique_ptr<nn::Layer> model;
  Tensor inputs, targets;
  optim::AdamW adamw;
  amp::Training training;

  explicit StrategyCase(std::string_view strategy) : StrategyCase(amp::Policy::named(strategy)) {}
  explicit StrategyCase(const amp::Policy& strategy, uint64_t seed = 1)
      : StrategyCase(strategy, mlp(seed), seed) {}
  StrategyCase(const amp::Policy& strategy, std::unique_ptr<nn::Layer> layer, uint64_t seed)
      : model(std::move(layer)),
        adamw(model->parameters(), {.lr = 1e-2}),
        training(amp::apply(strategy, *model, adamw)) {
    manual_seed(seed + 100);
    const MemoryScope scope(MemoryUse::input);
    inputs = randn({32, 24}), targets = randint(0, 10, {32});
  }

  static std::unique_ptr<nn::Layer> mlp(uint64_t seed) {
    manual_seed(seed);
    return std::make_unique<nn::Sequential>(nn::models::mlp({24, 40, 10}));
  }

  Tensor loss() { return cross_entropy(training.forward(*model, inputs), targets); }
  double step() {
    training.zero_grad();
    const Tensor value = loss();
    training.backward(value);
    training.step();
    return value.item();
  }
};

}  // namespace halftone::test
