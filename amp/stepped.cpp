// Who decides about a step, and which gradient was to blame.
#include <halftone/amp/stepped.h>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone::amp {

bool host_decides(Decision decision, const Tensor& flag) {
  return decision == Decision::where_free && flag.device().kind == DeviceKind::cpu;
}

Stepped step_unless(optim::Optimizer& optimizer, const Tensor& skip, const Tensor& factor,
                    Decision decision) {
  Stepped stepped = skip.defined() ? Stepped(skip) : Stepped(true);
  const bool on_host = !skip.defined() || host_decides(decision, skip);
  if (!on_host && optimizer.step_unless(skip, factor)) return stepped;
  if (!stepped) return stepped;
  if (factor.defined()) optimizer.step_scaled(factor);
  else optimizer.step();
  return stepped;
}

std::optional<std::size_t> first_not_finite(std::span<const Tensor> gradients) {
  std::size_t position = 0;
  for (Tensor gradient : gradients) {
    if (!gradient.defined()) continue;
    Tensor found = zeros({}, f32, gradient.device());
    backend_for(gradient).unscale({&gradient, 1}, {}, found);
    if (found.item() != 0) return position;
    ++position;
  }
  return {};
}

}  // namespace halftone::amp
