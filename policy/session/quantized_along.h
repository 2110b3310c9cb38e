// The view of a tensor for quantization: a matrix whose columns run along the dimension that a
// product sums over, because blocks of scales and rotations run along it.
#pragma once

#include <halftone/core/formats/quantizer.h>
#include <halftone/core/op_info.h>

namespace halftone::policy {

/// Returns quantized() of that view, with shape, dtype and device of x.
Tensor quantized_along(const Tensor& x, Sums sums, const QuantizeCall& call);

}  // namespace halftone::policy
