// RMSprop (Hinton 2012, lecture 6e; Graves 2013 for the centered form). Mirrors
// torch.optim.RMSprop: v = alpha v + (1 - alpha) g^2;  p -= lr g / (sqrt(v) + eps). If centered, v
// - avg(g)^2 replaces v; if momentum is not 0, the quotient goes through a momentum buffer.
#pragma once

#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {

struct RmspropOptions {
  double lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0;
  bool centered = false, maximize = false;  // maximize: moves along the gradient
  std::optional<DType> state_dtype{};       // absent: f32

  static constexpr std::string_view name = "Rmsprop";
  static constexpr StateLayout layout{
      .names = {"square_avg", "momentum_buffer", "grad_avg"}, .essential = 1, .numbered = false};
  UpdateRule rule() const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

using Rmsprop = ElementwiseOptimizer<RmspropOptions>;
extern template class ElementwiseOptimizer<RmspropOptions>;

}  // namespace halftone::optim
