// Picks elements by indices along one dimension, and the adjoint. Indices are i64 or i32; one out
// of range is an error, at once on the CPU and at the next wait on a GPU.
#pragma once

#include <halftone/autograd/ops/operators.h>

namespace halftone {

namespace detail {
/// Returns indices as kernels take them.
inline Tensor wide_indices(std::string_view op, std::string_view what, const Tensor& index) {
  check::integers(op, what, index);
  return index.dtype() == i64 ? index : Cast::converted(index, i64);
}
/// The same, checked if the host can see them, so that the error names the called operation.
/// `size`: of the dimension they count in.
Tensor indices_within(std::string_view op, const Tensor& index, int64_t size);
/// Returns the part of x that indices of a shape reach: cut to it in every dimension but `dim`.
Tensor reached(std::string_view op, const Tensor& x, int dim, const Shape& shape);
}  // namespace detail

/// y[i] = x[i with index[i] at dim]; y has the index's shape.
struct Gather {
  static constexpr OpInfo info{"gather", CastClass::as_is, cast_reason::moves};
  int dim;
  Tensor index{};
  Shape from{};

  Tensor forward(const Tensor& x, const Tensor& which) {
    index = which, from = x.shape();
    Tensor y = empty(index.shape(), x.dtype(), x.device());
    backend_for(x).gather(detail::reached("gather", x, dim, index.shape()), dim, index, y);
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy) const {
    Tensor dx = zeros(from, dy.dtype(), dy.device());
    Tensor part = detail::reached("gather", dx, dim, index.shape());
    backend_for(dy).scatter_add(dy, dim, index, part);
    return {dx, Tensor{}};
  }
};

/// y = x, then y[i with index[i] at dim] += source[i] for every i of the index.
struct ScatterAdd {
  static constexpr OpInfo info{"scatter_add", CastClass::widest_input, cast_reason::several_inputs};
  int dim;
  Tensor index{};
  Shape source_shape{};
  Needs<3> needs{};

  static Tensor cut(Tensor x, const Shape& shape) {
    for (int d = 0; d < shape.rank(); ++d) x = views::slice(x, d, 0, shape[d]);
    return x;
  }
  Tensor forward(const Tensor& x, const Tensor& which, const Tensor& source) {
    check::same_dtype("scatter_add", x, source);
    index = which, source_shape = source.shape();
    Tensor y = x.clone();
    Tensor part = detail::reached("scatter_add", y, dim, index.shape());
    backend_for(x).scatter_add(cut(source, index.shape()), dim, index, part);
    return y;
  }
  std::array<Tensor, 3> backward(const Tensor& dy) const {
    Tensor dsource;
    if (needs[2]) {
      dsource = zeros(source_shape, dy.dtype(), dy.device());
      Tensor part = cut(dsource, index.shape());
      backend_for(dy).gather(detail::reached("scatter_add", dy, dim, index.shape()), dim, index,
                             part);
    }
    return {dy, Tensor{}, dsource};
  }
};

/// As torch.gather: index has x's rank and, except in `dim`, sizes up to x's.
Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// As torch.scatter_add, in a defined order: sums repeat bit by bit on every device.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
/// Returns the slices of x at `index`, a vector, along a dimension. As torch.index_select.
Tensor index_select(const Tensor& x, int dim, const Tensor& index);
/// Returns x with its elements at index[i] along a dimension replaced by source[i]. If several
/// sources have one position, the last counts and alone gets a gradient. As torch.scatter.
Tensor scatter(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
Tensor scatter(const Tensor& x, int dim, const Tensor& index, Number value);
/// Returns x with alpha times the slices of source added at `index`, a vector, along a dimension.
/// As torch.index_add: integers take a whole alpha.
Tensor index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
                 Number alpha = 1);
/// gather() whose index and x broadcast except in `dim`; without `dim`, it indexes all elements in
/// row-major order. As torch.take_along_dim.
Tensor take_along_dim(const Tensor& x, const Tensor& index, std::optional<int> dim = {});
/// Returns i64 [count, rank]: where x is not 0, row-major. Waits for the GPU. As torch.nonzero.
Tensor nonzero(const Tensor& x);
/// Returns the elements of x where the mask is true, as a vector; both broadcast. Waits for the
/// GPU. As torch.masked_select.
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// Returns `value` where the mask is true, else x. As torch.masked_fill; it also refuses a value
/// that x's dtype cannot hold.
Tensor masked_fill(const Tensor& x, const Tensor& mask, Number value);
/// Returns i64 [.., classes], 1 at the index and 0 elsewhere. classes -1: the largest index + 1,
/// which the host reads. As torch.nn.functional.one_hot.
Tensor one_hot(const Tensor& index, int64_t classes = -1);

}  // namespace halftone
