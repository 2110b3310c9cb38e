// Adam (Kingma & Ba 2015) and AdamW, with weight decay decoupled from the gradient (Loshchilov &
// Hutter 2019). They mirror torch.optim.Adam and AdamW:  m = beta1 m + (1 - beta1) g;  v = beta2 v
// + (1 - beta2) g^2; p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps).
#pragma once

#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {

struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;  // decay is added to the gradient
  std::optional<DType> state_dtype{};   // absent: f32
  bool amsgrad = false;                 // the largest v so far divides (Reddi et al. 2018)
  bool maximize = false;                // goes up the gradient

  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

/// The same with PyTorch's other default; decay shrinks the parameter itself, by lr * weight_decay.
struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0.01;
  std::optional<DType> state_dtype{};
  bool amsgrad = false, maximize = false;

  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

/// Adam where Options is AdamOptions, AdamW where it is AdamWOptions.
template <class Options> class AdamFamily final : public GroupedOptimizer<Options> {
  using Base = GroupedOptimizer<Options>;

 public:
  explicit AdamFamily(std::vector<Tensor> parameters, Options options = {})
      : AdamFamily(std::vector{ParameterGroup<Options>{std::move(parameters), options}}) {}
  /// lr by its place, as in PyTorch
  template <std::floating_point Lr>
  AdamFamily(std::vector<Tensor> parameters, Lr lr)
      : AdamFamily(std::move(parameters), Options{.lr = double(lr)}) {}
  explicit AdamFamily(std::vector<ParameterGroup<Options>> groups);

 private:
  typename Base::StateFlags needed_state(int group) const override {
    return {true, true, this->options_of(group).amsgrad};
  }
  int64_t batch_key(const typename Base::ParameterState& state) const override {
    return state.steps;
  }
  void update(int group, const typename Base::Batch& batch, Backend& backend) override;
};

using Adam = AdamFamily<AdamOptions>;
using AdamW = AdamFamily<AdamWOptions>;

extern template class AdamFamily<AdamOptions>;
extern template class AdamFamily<AdamWOptions>;

}  // namespace halftone::optim
