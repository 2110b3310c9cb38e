// LAMB (You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2): Adam's
// direction u = m / (sqrt(v) + eps) + weight_decay p, moments corrected for their bias, scaled to
// the length of the parameter tensor: p -= lr |p| / |u| u (factor 1 if a norm is 0). Not
// elementwise: the model for optimizers that need more than a rule.
#pragma once

#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {

struct LambOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-6, weight_decay = 0;
  std::optional<DType> state_dtype{};  // absent: f32
  bool maximize = false;               // moves along the gradient, not against it

  static constexpr std::string_view name = "Lamb";
  static constexpr StateLayout layout{.names = {"exp_avg", "exp_avg_sq"}, .essential = 2};
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

class Lamb final : public GroupedOptimizer<LambOptions> {
 public:
  using GroupedOptimizer::GroupedOptimizer;

 private:
  StateMask needed_state(int /*group*/, const Tensor& /*parameter*/) const override { return 3; }
  void update(int group, const Batch& batch, Backend& backend) override;
};

}  // namespace halftone::optim
