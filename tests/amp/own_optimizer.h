// An optimizer as a user writes it: it uses f32 parameters and has no code for backends or masters.
#pragma once

#include <doctest/doctest.h>

#include <utility>
#include <vector>

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

}  // namespace halftone::test
