// Three passes over a parameter: the direction, both norms, the step. The host reads no value.
#include <halftone/optim/lamb.h>

#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/optim/directions.h>

namespace halftone::optim {

void LambOptions::describe(OptionFields& field) {
  field("lr", lr), field("betas", betas), field("eps", eps);
  field("weight_decay", weight_decay), field("maximize", maximize);
}

void LambOptions::check(std::string_view optimizer) const {
  detail::require_not_negative(optimizer, "lr", lr);
  detail::require_decay_rate(optimizer, "beta1", betas[0]);
  detail::require_decay_rate(optimizer, "beta2", betas[1]);
  detail::require_not_negative(optimizer, "eps", eps);
  detail::require_not_negative(optimizer, "weight_decay", weight_decay);
  detail::require_state_dtype(optimizer, state_dtype);
}

namespace {
Tensor squares(Backend& backend, const Tensor& x) {
  Tensor total = empty({}, f64, x.device());
  backend.sum_of_squares({&x, 1}, total);
  return total;
}

/// Returns |weight| / |direction|, or 1 if either is 0.
Tensor trust_ratio(Backend& backend, const Tensor& weight, const Tensor& direction) {
  const Tensor w = squares(backend, weight), u = squares(backend, direction);
  const Tensor zero = full({}, 0, w.dtype(), w.device()), one = full({}, 1, w.dtype(), w.device());
  Tensor smaller = empty_like(w), ratio = empty_like(w), result = empty_like(w),
         positive = empty_like(w, boolean);
  backend.binary(call_of<BinaryFormulas>(formula::Minimum{}), w, u, smaller);
  backend.compare(call_of<CompareFormulas>(formula::Greater{}), smaller, zero, positive);
  backend.binary(call_of<BinaryFormulas>(formula::Div{}), w, u, ratio);
  backend.unary(call_of<UnaryFormulas>(formula::Sqrt{}), ratio, ratio);
  backend.select(positive, ratio, one, result);
  Tensor in_dtype = empty_like(result, direction.dtype());
  backend.copy(result, in_dtype);
  return in_dtype;
}
}  // namespace

void Lamb::update(int group, const Batch& batch, Backend& backend) {
  const LambOptions& o = options_of(group);
  const MemoryScope scope(MemoryUse::workspace);
  for (const UpdateSlot& slot : batch.slots) {
    Tensor direction = direction_like(slot.parameter), weight = direction_like(slot.parameter);
    UpdateSlot first = slot;
    first.state[2] = direction;
    backend.update(
        {&first, 1},
        batch.call(rule::AdamDirection{o.betas[0], o.betas[1], o.eps, o.weight_decay}, o.lr));
    UpdateSlot reading = uncounted(slot, slot.gradient);
    reading.state[0] = weight;
    backend.update({&reading, 1}, batch.call(rule::ReadWeight{}, o.lr));
    scale(backend, direction, trust_ratio(backend, weight, direction));
    UpdateSlot last = uncounted(slot, direction);
    backend.update({&last, 1}, batch.call(rule::Sgd{}, o.lr));
  }
}

}  // namespace halftone::optim
