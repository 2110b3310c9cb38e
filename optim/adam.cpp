// Adam's and AdamW's options, and the update rule they describe.
#include <halftone/optim/adam.h>

namespace halftone::optim {
namespace {

template <class Options> void describe_adam(Options& options, OptionFields& field) {
  field("lr", options.lr), field("betas", options.betas);
  field("eps", options.eps), field("weight_decay", options.weight_decay);
  field("amsgrad", options.amsgrad), field("maximize", options.maximize);
}

template <class Options> void check_adam(const Options& options, std::string_view optimizer) {
  detail::require_not_negative(optimizer, "lr", options.lr);
  detail::require_decay_rate(optimizer, "beta1", options.betas[0]);
  detail::require_decay_rate(optimizer, "beta2", options.betas[1]);
  detail::require_not_negative(optimizer, "eps", options.eps);
  detail::require_not_negative(optimizer, "weight_decay", options.weight_decay);
  detail::require_state_dtype(optimizer, options.state_dtype);
}

}  // namespace

void AdamOptions::describe(OptionFields& field) { describe_adam(*this, field); }
void AdamOptions::check(std::string_view optimizer) const { check_adam(*this, optimizer); }
void AdamWOptions::describe(OptionFields& field) { describe_adam(*this, field); }
void AdamWOptions::check(std::string_view optimizer) const { check_adam(*this, optimizer); }

UpdateRule AdamOptions::rule() const {
  return rule::Adam{betas[0], betas[1], eps, weight_decay, false, amsgrad};
}
UpdateRule AdamWOptions::rule() const {
  return rule::Adam{betas[0], betas[1], eps, weight_decay, true, amsgrad};
}

template class ElementwiseOptimizer<AdamOptions>;
template class ElementwiseOptimizer<AdamWOptions>;

}  // namespace halftone::optim
