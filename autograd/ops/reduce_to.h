// The gradient of broadcasting: sum back to the shape that was broadcast. Not recorded.
#pragma once

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

namespace halftone {

/// Returns dy summed over the dimensions in which `shape` was broadcast to dy's shape; dy itself if
/// there are none. `dtype` of the sum may be wider than dy's.
inline Tensor reduce_to(const Tensor& dy, const Shape& shape, DType dtype) {
  if (dy.shape() == shape && dy.dtype() == dtype) return dy;
  Shape kept = dy.shape();
  const int extra = dy.rank() - shape.rank();
  for (int i = 0; i < dy.rank(); ++i)
    if (i < extra || shape[i - extra] == 1) kept[i] = 1;
  Tensor sum = empty(kept, dtype, dy.device());
  backend_for(dy).reduce(Reduction::sum, dy, sum);
  return sum.view_as(shape, contiguous_strides(shape), 0);
}
inline Tensor reduce_to(const Tensor& dy, const Shape& shape) {
  return reduce_to(dy, shape, dy.dtype());
}

}  // namespace halftone
