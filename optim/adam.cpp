// Adam and AdamW in terms of Backend::adam_step, which corrects the bias by the step count.
#include <halftone/optim/adam.h>

namespace halftone::optim {
namespace {

template <class Options> constexpr bool decoupled = std::is_same_v<Options, AdamWOptions>;

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

template <class Options>
AdamFamily<Options>::AdamFamily(std::vector<ParameterGroup<Options>> groups)
    : Base(decoupled<Options> ? "AdamW" : "Adam",
           {.names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, .essential = 2},
           std::move(groups)) {}

template <class Options>
void AdamFamily<Options>::update(int group, const typename Base::Batch& batch, Backend& backend) {
  const Options& o = this->options_of(group);
  backend.adam_step(batch.slots, {.lr = o.lr,
                                  .beta1 = o.betas[0],
                                  .beta2 = o.betas[1],
                                  .eps = o.eps,
                                  .weight_decay = o.weight_decay,
                                  .decoupled = decoupled<Options>,
                                  .steps = batch.key,
                                  .amsgrad = o.amsgrad,
                                  .skip = batch.skip,
                                  .device_lr = batch.device_lr});
}

template class AdamFamily<AdamOptions>;
template class AdamFamily<AdamWOptions>;

}  // namespace halftone::optim
