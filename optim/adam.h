// Adam (Kingma & Ba 2015) and AdamW, with weight decay decoupled from the gradient (Loshchilov &
// Hutter 2019). They mirror torch.optim.Adam and AdamW:  m = beta1 m + (1 - beta1) g;  v = beta2 v
// + (1 - beta2) g^2; p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps).
#pragma once

#include <halftone/optim/grouped_optimizer.h>

namespace halftone::optim {

/// The layout of both; max_exp_avg_sq is AMSGrad's.
inline constexpr StateLayout adam_layout{.names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
                                         .essential = 2};

struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;  // decay is added to the gradient
  std::optional<DType> state_dtype{};   // absent: f32
  bool amsgrad = false;                 // divides by the largest v until now (Reddi et al. 2018)
  bool maximize = false;                // moves along the gradient, not against it

  static constexpr std::string_view name = "Adam";
  static constexpr StateLayout layout = adam_layout;
  UpdateRule rule() const;
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

  static constexpr std::string_view name = "AdamW";
  static constexpr StateLayout layout = adam_layout;
  UpdateRule rule() const;
  void describe(OptionFields& field);
  void check(std::string_view optimizer) const;
};

using Adam = ElementwiseOptimizer<AdamOptions>;
using AdamW = ElementwiseOptimizer<AdamWOptions>;

extern template class ElementwiseOptimizer<AdamOptions>;
extern template class ElementwiseOptimizer<AdamWOptions>;

}  // namespace halftone::optim
