// RMSprop's options, and the update rule they describe.
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

UpdateRule RmspropOptions::rule() const {
  return rule::Rmsprop{alpha, eps, weight_decay, momentum, centered};
}

template class ElementwiseOptimizer<RmspropOptions>;

}  // namespace halftone::optim
