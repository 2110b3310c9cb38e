// Elementwise functions composed of others: lerp, glu, nan_to_num.
#pragma once

#include <halftone/autograd/ops/logical.h>

namespace halftone {

/// Returns a + weight (b - a), computed from the nearer end, as torch.lerp; short floats are mixed
/// in f32 and rounded once.
Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight);
Tensor lerp(const Tensor& a, const Tensor& b, double weight);
/// Returns a dimension's first half times the sigmoid of the second. As torch.nn.functional.glu.
Tensor glu(const Tensor& x, int dim = -1);
/// Replaces NaN and the infinities; absent values: the largest and the smallest of the dtype.
/// Replaced elements have no gradient. As torch.nan_to_num.
Tensor nan_to_num(const Tensor& x, double nan = 0, std::optional<double> posinf = {},
                  std::optional<double> neginf = {});

}  // namespace halftone
