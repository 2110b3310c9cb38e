// What optimizers that are not elementwise share. Their step has two halves: a rule that leaves a
// direction (core/update_rules.h), and the rule of SGD along it, so that forms of weights, loss
// scales and skipped steps are the backend's business in both.
#pragma once

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone::optim {

/// A tensor for a direction, laid out as the parameter: f32, f64 of an f64 parameter.
inline Tensor direction_like(const Tensor& parameter) {
  return empty_like(parameter, parameter.dtype() == f64 ? f64 : f32);
}

/// The slot's weight alone, to be moved along `gradient`: no state, no factor, no count.
inline UpdateSlot uncounted(const UpdateSlot& slot, const Tensor& gradient) {
  return {.parameter = slot.parameter,
          .gradient = gradient,
          .form = slot.form,
          .companion = slot.companion,
          .key = slot.key,
          .key_stride = slot.key_stride};
}

/// x *= factor, a scalar of x's dtype on its device.
inline void scale(Backend& backend, Tensor& x, const Tensor& factor) {
  const Tensor everywhere = factor.view_as(x.shape(), Strides::filled(x.rank(), 0), 0);
  backend.binary(call_of<BinaryFormulas>(formula::Mul{}), x, everywhere, x);
}

}  // namespace halftone::optim
