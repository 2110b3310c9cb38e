// Weights in f32 on their way into a form (core/weight_form.h) and out of it: what making masters,
// saving, loading and converting between strategies need. Not for training steps: the backends'
// optimizers do that in passing.
#pragma once

#include <halftone/core/memory_ledger.h>
#include <halftone/core/tensor.h>
#include <halftone/core/weight_form.h>

namespace halftone::amp {

/// bf16 or f16: what needs keeping.
inline bool is_short_float(const Tensor& x) { return x.dtype() == bf16 || x.dtype() == f16; }

/// What the ledger calls the companion of a form.
MemoryUse companion_use(WeightForm form);

/// Throws DTypeError, in the name of `where`, if parameters of `dtype` cannot be kept in this form.
void require_form(std::string_view where, WeightForm form, DType dtype);

/// The weight that a parameter and its companion stand for, as a new tensor: f32,
/// f64 of an f64 parameter.
Tensor joined_weight(WeightForm form, const Tensor& parameter, const Tensor& companion);
/// Writes a weight into a parameter and its companion.
void store_weight(WeightForm form, const Tensor& weight, Tensor& parameter, Tensor& companion);

}  // namespace halftone::amp
