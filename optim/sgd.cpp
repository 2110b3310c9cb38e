// SGD in terms of Backend::sgd_step; momentum buffers are filled by the first step that needs them.
#include <halftone/optim/sgd.h>

namespace halftone::optim {

void SgdOptions::describe(OptionFields& field) {
  field("lr", lr), field("momentum", momentum), field("dampening", dampening);
  field("weight_decay", weight_decay), field("nesterov", nesterov), field("maximize", maximize);
}

void SgdOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  detail::require_not_negative(optimizer, "momentum", momentum);
  detail::require_finite(optimizer, "dampening", dampening);
  detail::require_not_negative(optimizer, "weight_decay", weight_decay);
  detail::require_state_dtype(optimizer, state_dtype);
  if (nesterov && (momentum <= 0 || dampening != 0))
    fail<UsageError>(optimizer, "nesterov with momentum ", momentum, " and dampening ", dampening,
                     ". It needs a positive momentum and no dampening.");
}

Sgd::Sgd(std::vector<ParameterGroup<SgdOptions>> groups)
    : GroupedOptimizer("Sgd", {.names = {"momentum_buffer"}, .has_step = false},
                       std::move(groups)) {}

Sgd::StateFlags Sgd::needed_state(int group) const { return {options_of(group).momentum != 0}; }

int64_t Sgd::batch_key(const ParameterState& state) const {
  return state.tensors[0].defined() ? 1 : 0;
}

void Sgd::update(int group, const Batch& batch, Backend& backend) {
  const SgdOptions& o = options_of(group);
  backend.sgd_step(batch.slots, {.lr = o.lr,
                                 .momentum = o.momentum,
                                 .dampening = o.dampening,
                                 .weight_decay = o.weight_decay,
                                 .nesterov = o.nesterov,
                                 .steps = batch.key,
                                 .skip = batch.skip,
                                 .device_lr = batch.device_lr});
}

}  // namespace halftone::optim
