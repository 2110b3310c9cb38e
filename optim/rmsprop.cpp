// RMSprop in terms of Backend::rmsprop_step.
#include <halftone/optim/rmsprop.h>

namespace halftone::optim {

void RmspropOptions::describe(OptionFields& field) {
  field("lr", lr), field("alpha", alpha), field("eps", eps);
  field("weight_decay", weight_decay), field("momentum", momentum), field("centered", centered);
  field("maximize", maximize);
}

void RmspropOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  detail::require_not_negative(optimizer, "alpha", alpha);
  detail::require_not_negative(optimizer, "eps", eps);
  detail::require_not_negative(optimizer, "weight_decay", weight_decay);
  detail::require_not_negative(optimizer, "momentum", momentum);
  detail::require_state_dtype(optimizer, state_dtype);
}

Rmsprop::Rmsprop(std::vector<ParameterGroup<RmspropOptions>> groups)
    : GroupedOptimizer("Rmsprop",
                       {.names = {"square_avg", "momentum_buffer", "grad_avg"}, .essential = 1},
                       std::move(groups)) {}

Rmsprop::StateFlags Rmsprop::needed_state(int group) const {
  const RmspropOptions& o = options_of(group);
  return {true, o.momentum > 0, o.centered};
}

void Rmsprop::update(int group, const Batch& batch, Backend& backend) {
  const RmspropOptions& o = options_of(group);
  backend.rmsprop_step(batch.slots, {.lr = o.lr,
                                     .alpha = o.alpha,
                                     .eps = o.eps,
                                     .weight_decay = o.weight_decay,
                                     .momentum = o.momentum,
                                     .centered = o.centered,
                                     .skip = batch.skip,
                                     .device_lr = batch.device_lr});
}

}  // namespace halftone::optim
