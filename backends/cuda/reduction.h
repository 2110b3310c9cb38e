// Shared parts of the two files of reductions.
#pragma once

#include <halftone/backends/cuda/layout.h>
#include <halftone/core/backend.h>

namespace halftone::cuda {

/// The loops of one reduction: `kept` over x and y, `reduced` over x.
struct ReduceLoops {
  Layout<2> kept;
  Layout<1> reduced;

  ReduceLoops(const Tensor& x, const Tensor& y)
      : kept(part_of(x, y, true), {x.strides(), contiguous_strides(y.shape())}),
        reduced(part_of(x, y, false), {x.strides()}) {}

 private:
  static Shape part_of(const Tensor& x, const Tensor& y, bool kept) {
    Shape shape = x.shape();
    for (int d = 0; d < x.rank(); ++d)
      if ((y.shape()[d] == x.shape()[d]) != kept) shape[d] = 1;
    return shape;
  }
};

/// Reduces with any kind, any strides, any dtypes; y = result / divisor if it is floating.
/// reduction_strided.cu
void reduce_strided(const Context& context, Reduction kind, const ReduceLoops& loops,
                    const Tensor& x, double divisor, Tensor& y);

}  // namespace halftone::cuda
