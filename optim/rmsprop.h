// RMSprop (Hinton 2012, lecture 6e; Graves 2013 for the centered form). Mirrors
// torch.optim.RMSprop: v = alpha v + (1 - alpha) g^2;  p -= lr g / (sqrt(v) + eps), with v -
// avg(g)^2 for v if centered, and with a momentum buffer around the quotient if momentum is not 0.
#pragma once

#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {

struct RmspropOptions {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false, maximize = false;  // maximize: goes up the gradient
  std::optional<DType> state_dtype{};       // absent: f32

  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

class Rmsprop final : public GroupedOptimizer<RmspropOptions> {
 public:
  explicit Rmsprop(std::vector<Tensor> parameters, RmspropOptions options = {})
      : Rmsprop(std::vector{ParameterGroup<RmspropOptions>{std::move(parameters), options}}) {}
  /// lr by its place, as in PyTorch
  template <std::floating_point Lr>
  Rmsprop(std::vector<Tensor> parameters, Lr lr)
      : Rmsprop(std::move(parameters), RmspropOptions{.lr = double(lr)}) {}
  explicit Rmsprop(std::vector<ParameterGroup<RmspropOptions>> groups);

 private:
  StateFlags needed_state(int group) const override;
  int64_t batch_key(const ParameterState&) const override { return 0; }
  void update(int group, const Batch& batch, Backend& backend) override;
};

}  // namespace halftone::optim
