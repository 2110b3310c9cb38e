// Shared code of optimizers that are not elementwise. Their step has two halves: a rule that writes
// a direction (core/update_rules.h), and SGD's rule along it. The backend thus handles weight
// forms, loss scales and skipped steps in both.
#pragma once

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone::optim {

/// Returns a tensor for a direction, laid out as the parameter: f32, or f64 for an f64 parameter.
inline Tensor direction_like(const Tensor& parameter) {
  return empty_like(parameter, parameter.dtype() == f64 ? f64 : f32);
}

/// Returns a slot that only moves the weight along `gradient`: no state, no factor, no count.
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
