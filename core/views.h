// Views: other shapes and strides over the same storage. Metadata only: nothing is recorded and
// nothing is copied, except by contiguous() and channels_last(), which copy if the layout differs.
// Operations and backends build on these; users call the recorded operations of the same names in
// autograd/ops/shape.h.
#pragma once

#include <optional>

#include <halftone/core/tensor.h>

namespace halftone::views {

Tensor transpose(const Tensor& x, int a, int b);
/// Permutes dimensions: dimension i of the result is dimension order[i] of x.
Tensor permute(const Tensor& x, const Dims& order);
/// Returns the same elements in row-major order under another shape, if strides can express it.
std::optional<Tensor> reshape(const Tensor& x, const Shape& shape);
/// Broadcasts to `shape` with strides of 0; x's shape must broadcast to it.
Tensor expand(const Tensor& x, const Shape& shape);
/// Returns elements start, start + step, ... of one dimension, `count` of them.
Tensor slice(const Tensor& x, int dim, int64_t start, int64_t count, int64_t step = 1);

/// Returns x itself if it is row-major, else a row-major copy.
Tensor contiguous(const Tensor& x);
/// Returns x itself if it is NHWC in memory, else such a copy (rank 4).
Tensor channels_last(const Tensor& x);
/// Returns x itself if it has exactly these dense strides, else such a copy.
Tensor with_strides(const Tensor& x, const Strides& strides);
/// reshape() that copies first if strides cannot express the result.
Tensor reshaped(const Tensor& x, const Shape& shape);

}  // namespace halftone::views
