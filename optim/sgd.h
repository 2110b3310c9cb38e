// Stochastic gradient descent with momentum (Polyak 1964; Sutskever et al. 2013 for the Nesterov
// form). Mirrors torch.optim.SGD: g += weight_decay p;  buf = momentum buf + (1 - dampening) g, at
// first buf = g; p -= lr (nesterov ? g + momentum buf : buf).
#pragma once

#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {

struct SgdOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;  // maximize: moves along the gradient
  std::optional<DType> state_dtype{};       // absent: f32

  static constexpr std::string_view name = "Sgd";
  static constexpr StateLayout layout{.names = {"momentum_buffer"}, .has_step = false};
  UpdateRule rule() const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

using Sgd = ElementwiseOptimizer<SgdOptions>;
extern template class ElementwiseOptimizer<SgdOptions>;

}  // namespace halftone::optim
