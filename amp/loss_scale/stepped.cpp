// The decision to skip a step, and the search for the gradient that overflowed.
#include <halftone/amp/loss_scale/stepped.h>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone::amp {

bool host_decides(Decision decision, const Tensor& flag) {
  return decision == Decision::where_free && flag.device().kind == DeviceKind::cpu;
}

Stepped step(optim::Optimizer& optimizer, const optim::StepControl& control, Decision decision) {
  Stepped stepped = control.skip.defined() ? Stepped(control.skip) : Stepped(true);
  if (stepped.known() || host_decides(decision, control.skip)) {
    if (stepped) optimizer.step({.factor = control.factor, .knows_scale = true});
  } else {
    optimizer.step({.factor = control.factor, .skip = control.skip, .knows_scale = true});
  }
  return stepped;
}

std::optional<std::size_t> first_not_finite(std::span<const Tensor> gradients) {
  std::size_t position = 0;
  for (Tensor gradient : gradients) {
    if (!gradient.defined()) continue;
    Tensor found_inf = zeros({}, f32, gradient.device());
    backend_for(gradient).unscale({&gradient, 1}, {}, found_inf);
    if (found_inf.item() != 0) return position;
    ++position;
  }
  return {};
}

}  // namespace halftone::amp
