// One tensor through one quantizer: the largest magnitude where the scale wants it, the rotation
// there and back, the kernel in between. Values change; dtype, shape and device do not.
#pragma once

#include <halftone/core/quantizer.h>

namespace halftone {

/// A new tensor. x: f32, bf16 or f16, any strides; its last dimension is the columns that blocks
/// run along, all others together are the rows. call.amax is found here where it is undefined and
/// wanted; `skip` is not for new tensors. Nobody waits for the device. check_quantizer() first.
Tensor quantized(const Tensor& x, const QuantizeCall& call);

/// The same in place, for parameters and states of optimizers, which lie row-major; a new storage
/// version.
void quantize_in_place(const Tensor& x, const QuantizeCall& call);

}  // namespace halftone
