// Applies a quantizer to one tensor: the rotation, the clip, the largest magnitude if the scale
// needs it, the kernel, and the rotation back. Values change; dtype, shape and device do not.
#pragma once

#include <halftone/core/formats/quantizer.h>

namespace halftone {

/// Returns a new tensor. x: f32, bf16 or f16, any strides. Blocks run along the last dimension
/// (columns); all others together are the rows. call.amax is computed if undefined and needed;
/// `skip` is for quantize_in_place() only. The host computes tables and functions of the program
/// (Quantizer::own), so a GPU waits for it; a captured step refuses them. Call check_quantizer()
/// first.
Tensor quantized(const Tensor& x, const QuantizeCall& call);

/// Does the same in place, for parameters and states of optimizers, which are row-major; bumps the
/// storage version. If call.skip is set, x keeps its bits. Several steps (a rotation, a clip, ...)
/// are computed before the skip is read.
void quantize_in_place(const Tensor& x, const QuantizeCall& call);

}  // namespace halftone
