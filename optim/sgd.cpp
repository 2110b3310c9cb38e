// SGD's options, and the update rule they describe.
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

UpdateRule SgdOptions::rule() const {
  return rule::Sgd{momentum, dampening, weight_decay, nesterov};
}

template class ElementwiseOptimizer<SgdOptions>;

}  // namespace halftone::optim
