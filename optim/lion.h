// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2): a step
// of length lr in every element, u = sign(beta1 m + (1 - beta1) g); p -= lr (u + weight_decay p);
// m = beta2 m + (1 - beta2) g. It has one state tensor, Adam has two; its lr is 3 to 10 times
// smaller.
#pragma once

#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {

struct LionOptions {
  double lr = 1e-4;
  std::array<double, 2> betas{0.9, 0.99};
  double weight_decay = 0;
  std::optional<DType> state_dtype{};  // absent: f32
  bool maximize = false;               // moves along the gradient, not against it

  static constexpr std::string_view name = "Lion";
  static constexpr StateLayout layout{.names = {"exp_avg"}, .essential = 1, .numbered = false};
  UpdateRule rule() const { return rule::Lion{betas[0], betas[1], weight_decay}; }
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

using Lion = ElementwiseOptimizer<LionOptions>;

}  // namespace halftone::optim
