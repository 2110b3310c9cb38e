// The host's part of slots.
#include <halftone/backends/cuda/update_slots.h>

namespace halftone::cuda {

SlotPlace::SlotPlace(const UpdateSlot& slot)
    : parameter(slot.parameter),
      gradient(slot.gradient),
      companion(slot.companion),
      gradient_factor(slot.gradient_factor.defined() ? slot.gradient_factor.data<float>()
                                                     : nullptr),
      steps(slot.steps.defined() ? slot.steps.data<int64_t>() : nullptr),
      count(slot.parameter.numel()),
      key(slot.key),
      key_stride(slot.key_stride),
      form(slot.form),
      aligned(true) {
  for (std::size_t s = 0; s < slot.state.size(); ++s) state[s] = Operand(slot.state[s]);
  for (const Tensor* x : {&slot.parameter, &slot.gradient, &slot.companion, &slot.state[0],
                          &slot.state[1], &slot.state[2]})
    aligned = aligned && (!x->defined() || begins_aligned4(*x));
}

bool lies_alike(const UpdateSlot& slot) {
  if (slot.parameter.dtype() == f64 || !slot.parameter.is_dense()) return false;
  for (const Tensor* x :
       {&slot.gradient, &slot.companion, &slot.state[0], &slot.state[1], &slot.state[2]}) {
    if (!x->defined()) continue;
    if (!Layout<2>(slot.parameter, *x).is_dense()) return false;
  }
  return true;
}

}  // namespace halftone::cuda
