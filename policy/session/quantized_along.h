// Which way a tensor is seen when it is quantized: as a matrix whose columns run along the
// dimension that a product sums over, for blocks of scales and rotations lie along that one.
#pragma once

#include <halftone/core/op_info.h>
#include <halftone/core/quantized.h>

namespace halftone::policy {

/// quantized(), seen that way; shape, dtype and device of x.
Tensor quantized_along(const Tensor& x, Sums sums, const QuantizeCall& call);

}  // namespace halftone::policy
