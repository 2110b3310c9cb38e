// Converts f32 weights into a form (core/update_rules.h) and back, for making masters, saving,
// loading and converting between strategies. Not for training steps: the backends' optimizers
// convert as part of the update.
#pragma once

#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>
#include <halftone/core/update_rules.h>

namespace halftone::amp {

/// Returns whether x is bf16 or f16: such parameters need a form.
inline bool is_short_float(const Tensor& x) { return x.dtype() == bf16 || x.dtype() == f16; }

/// Returns the memory use of a form's companion in the ledger.
MemoryUse companion_use(WeightForm form);

/// Throws DTypeError, in the name of `where`, if this form cannot store parameters of `dtype`.
void require_form(std::string_view where, WeightForm form, DType dtype);

/// Returns the weight of a parameter and its companion, as a new tensor: f32, or f64 for an f64
/// parameter.
Tensor joined_weight(WeightForm form, const Tensor& parameter, const Tensor& companion);
/// Writes a weight into a parameter and its companion.
void store_weight(WeightForm form, const Tensor& weight, Tensor& parameter, Tensor& companion);

}  // namespace halftone::amp
