// SGD, Adam and RMSprop as rules for one element, in float (double for f64 weights): PyTorch's
// formulas, once for the loops of the reference backend and for CUDA kernels (HT_HD). What depends
// on the rate and on the number of the step is one set of Numbers per parameter, in double.
#pragma once

#include <halftone/core/backend.h>
#include <halftone/core/host_device.h>
#include <halftone/core/math.h>

namespace halftone {

/// torch.optim.SGD
struct SgdRule {
  static constexpr int states = 1;
  struct Numbers {
    double lr;
    bool first;
  };
  double momentum, dampening, weight_decay;
  bool nesterov;

  explicit SgdRule(const SgdUpdate& u)
      : momentum(u.momentum),
        dampening(u.dampening),
        weight_decay(u.weight_decay),
        nesterov(u.nesterov) {}
  HT_HD Numbers numbers(double lr, int64_t steps_before) const { return {lr, steps_before == 0}; }
  template <class C> HT_HD void apply(const Numbers& n, C gradient, C& weight, C* state) const {
    C step = gradient + C(weight_decay) * weight;
    if (momentum != 0) {
      state[0] = n.first ? step : C(momentum) * state[0] + C(1 - dampening) * step;
      step = nesterov ? step + C(momentum) * state[0] : state[0];
    }
    weight -= C(n.lr) * step;
  }
};

/// torch.optim.Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019), with AMSGrad
struct AdamRule {
  static constexpr int states = 3;
  struct Numbers {
    double step_size, root_correction, decay;
  };
  double beta1, beta2, eps, weight_decay;
  bool decoupled, amsgrad;

  explicit AdamRule(const AdamUpdate& u)
      : beta1(u.beta1),
        beta2(u.beta2),
        eps(u.eps),
        weight_decay(u.weight_decay),
        decoupled(u.decoupled),
        amsgrad(u.amsgrad) {}
  HT_HD Numbers numbers(double lr, int64_t steps_before) const {
    const double t = double(steps_before + 1);
    return {lr / (1 - math::pow(beta1, t)), math::sqrt(1 - math::pow(beta2, t)),
            1 - lr * weight_decay};
  }
  template <class C> HT_HD void apply(const Numbers& n, C gradient, C& weight, C* state) const {
    if (decoupled) weight *= C(n.decay);
    const C g = decoupled ? gradient : gradient + C(weight_decay) * weight;
    state[0] += C(1 - beta1) * (g - state[0]);
    state[1] = C(beta2) * state[1] + C(1 - beta2) * g * g;
    C moment = state[1];
    if (amsgrad) moment = state[2] = state[2] > moment ? state[2] : moment;
    const C denominator = math::sqrt(moment) / C(n.root_correction) + C(eps);
    weight -= C(n.step_size) * state[0] / denominator;
  }
};

/// torch.optim.RMSprop (Hinton 2012; centred: Graves 2013)
struct RmspropRule {
  static constexpr int states = 3;
  struct Numbers {
    double lr;
  };
  double alpha, eps, weight_decay, momentum;
  bool centered;

  explicit RmspropRule(const RmspropUpdate& u)
      : alpha(u.alpha),
        eps(u.eps),
        weight_decay(u.weight_decay),
        momentum(u.momentum),
        centered(u.centered) {}
  HT_HD Numbers numbers(double lr, int64_t) const { return {lr}; }
  template <class C> HT_HD void apply(const Numbers& n, C gradient, C& weight, C* state) const {
    const C g = gradient + C(weight_decay) * weight;
    state[0] = C(alpha) * state[0] + C(1 - alpha) * g * g;
    if (centered) state[2] += C(1 - alpha) * (g - state[2]);
    const C variance = centered ? state[0] - state[2] * state[2] : state[0];
    C step = g / (math::sqrt(variance) + C(eps));
    if (momentum != 0) step = state[1] = C(momentum) * state[1] + step;
    weight -= C(n.lr) * step;
  }
};

}  // namespace halftone
