// Lion's options.
#include <halftone/optim/lion.h>

namespace halftone::optim {

void LionOptions::describe(OptionFields& field) {
  field("lr", lr), field("betas", betas);
  field("weight_decay", weight_decay), field("maximize", maximize);
}

void LionOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  detail::require_decay_rate(optimizer, "beta1", betas[0]);
  detail::require_decay_rate(optimizer, "beta2", betas[1]);
  detail::require_not_negative(optimizer, "weight_decay", weight_decay);
  detail::require_state_dtype(optimizer, state_dtype);
}

}  // namespace halftone::optim
