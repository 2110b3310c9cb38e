// Stochastic gradient descent with momentum (Polyak 1964; Sutskever et al. 2013 for the Nesterov
// form). Mirrors torch.optim.SGD: g += weight_decay p;  buf = momentum buf + (1 - dampening) g, at
// first buf = g; p -= lr (nesterov ? g + momentum buf : buf).
#pragma once

#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {

struct SgdOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;  // maximize: goes up the gradient
  std::optional<DType> state_dtype{};       // absent: f32

  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

class Sgd final : public GroupedOptimizer<SgdOptions> {
 public:
  explicit Sgd(std::vector<Tensor> parameters, SgdOptions options = {})
      : Sgd(std::vector{ParameterGroup<SgdOptions>{std::move(parameters), options}}) {}
  /// lr by its place, as in PyTorch
  template <std::floating_point Lr>
  Sgd(std::vector<Tensor> parameters, Lr lr)
      : Sgd(std::move(parameters), SgdOptions{.lr = double(lr)}) {}
  explicit Sgd(std::vector<ParameterGroup<SgdOptions>> groups);

 private:
  StateFlags needed_state(int group) const override;
  int64_t batch_key(const ParameterState& state) const override;
  void update(int group, const Batch& batch, Backend& backend) override;
};

}  // namespace halftone::optim
