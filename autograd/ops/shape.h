// Other shapes, other orders, parts and joins of tensors.
#pragma once

#include <optional>

#include <halftone/autograd/apply.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/tensor.h>

namespace halftone {

// The gradient of broadcasting: sum back to the shape that was broadcast. Not recorded.

/// Returns dy summed over the dimensions in which `shape` was broadcast to dy's shape, in `dtype`,
/// which may be wider than dy's. Returns dy itself if shape and dtype are dy's.
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

// Changes of shape. Most are views: the result shares the input's storage, and the gradient is the
// inverse view.

/// x's elements in row-major order under another shape; a view if strides allow it.
struct Reshape {
  static constexpr OpInfo info{"reshape", CastClass::as_is, cast_reason::moves};
  static constexpr bool reads_waiting = true;
  Shape to;
  Shape from{};

  Tensor forward(const Tensor& x) {
    from = x.shape();
    return views::reshaped(x, to);
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {views::reshaped(dy, from)}; }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Dimensions in another order; a view.
struct Permute {
  static constexpr OpInfo info{"permute", CastClass::as_is, cast_reason::moves};
  static constexpr bool reads_waiting = true;
  Dims order;

  Tensor forward(const Tensor& x) { return views::permute(x, order); }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Dims inverse = order;
    for (int i = 0; i < order.rank(); ++i) inverse[int(order[i])] = i;
    return {views::permute(dy, inverse)};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Broadcast to a larger shape; a view with strides of 0.
struct Expand {
  static constexpr OpInfo info{"expand", CastClass::as_is, cast_reason::moves};
  Shape to;
  Shape from{};

  Tensor forward(const Tensor& x) {
    from = x.shape();
    return views::expand(x, to);
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {reduce_to(dy, from)}; }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Elements start, start + step, ... of one dimension; a view.
struct Slice {
  static constexpr OpInfo info{"slice", CastClass::as_is, cast_reason::moves};
  int dim;
  int64_t start, count, step;
  Shape from{};

  Tensor forward(const Tensor& x) {
    from = x.shape();
    return views::slice(x, dim, start, count, step);
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = zeros(from, dy.dtype(), dy.device());
    Tensor part = views::slice(dx, dim, start, count, step);
    backend_for(dy).copy(dy, part);
    return {dx};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Tensors joined along a dimension, one after the other.
struct Cat {
  static constexpr OpInfo info{"cat", CastClass::widest_input, cast_reason::two_inputs};
  int dim;
  std::vector<int64_t> sizes{};

  static int64_t joined(int64_t a, int64_t b) {
    const Checked sum = Checked(a) + b;
    if (sum.overflowed)
      fail<ShapeError>("cat", "sizes of ", a, " and ", b, " are beyond 64 bits. Join fewer.");
    return sum.value;
  }
  Tensor forward(std::span<const Tensor> inputs) {
    Shape shape = inputs[0].shape();
    shape[dim] = 0;
    for (const Tensor& x : inputs) {
      check::same_dtype("cat", inputs[0], x);
      Shape other = x.shape();
      if (other.rank() == shape.rank())
        sizes.push_back(other[dim]), shape[dim] = joined(shape[dim], other[dim]),
                                     other[dim] = shape[dim];
      if (other != shape)
        fail<ShapeError>("cat", "inputs are ", described(inputs[0]), " and ", described(x),
                         "; they may differ in dimension ", dim, " only. Reshape or pad them.");
    }
    Tensor y = empty(shape, inputs[0].dtype(), inputs[0].device());
    int64_t start = 0;
    for (const Tensor& x : inputs) {
      Tensor part = views::slice(y, dim, start, x.shape()[dim]);
      backend_for(y).copy(x, part);
      start += x.shape()[dim];
    }
    return y;
  }
  std::vector<Tensor> backward(const Tensor& dy) const {
    std::vector<Tensor> parts;
    int64_t start = 0;
    for (int64_t size : sizes) {
      parts.push_back(views::slice(dy, dim, start, size));
      start += size;
    }
    return parts;
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// A constant border: before[i] and after[i] elements along dimension i.
struct Pad {
  static constexpr OpInfo info{"pad", CastClass::as_is, cast_reason::moves};
  Dims before, after;
  Number value;
  Shape from{};

  Tensor inner(Tensor padded) const {
    for (int i = 0; i < from.rank(); ++i) padded = views::slice(padded, i, before[i], from[i]);
    return padded;
  }
  Tensor forward(const Tensor& x) {
    from = x.shape();
    Shape shape = from;
    for (int i = 0; i < shape.rank(); ++i) shape[i] += before[i] + after[i];
    Tensor y = full(shape, value, x.dtype(), x.device());
    Tensor part = inner(y);
    backend_for(x).copy(x, part);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {inner(dy)}; }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// x in row-major memory.
struct Contiguous {
  static constexpr OpInfo info{"contiguous", CastClass::as_is, cast_reason::moves};
  Tensor forward(const Tensor& x) { return views::contiguous(x); }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {dy}; }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

namespace detail {
/// The amounts added to (or, if negative, cut from) each dimension.
struct Padding {
  Dims before, after;
};
/// Returns the padding of x that pairs (before, after) describe, from the last dimension backwards.
/// Throws ShapeError for pairs that do not fit x.
Padding padding_of(const Tensor& x, const Dims& pairs_from_last);
/// Returns x without the parts that negative amounts cut; these amounts become 0.
Tensor cropped(const Tensor& x, Padding& padding);
}  // namespace detail

// --- functions for users

/// As torch.reshape: one size may be -1 and is then computed.
Tensor reshape(const Tensor& x, Shape shape);
/// Joins dimensions start to end (inclusive) into one. As torch.flatten.
Tensor flatten(const Tensor& x, int start = 0, int end = -1);
Tensor permute(const Tensor& x, const Dims& order);
Tensor transpose(const Tensor& x, int a, int b);
/// As torch.Tensor.expand: sizes of 1 may grow, -1 keeps a size.
Tensor expand(const Tensor& x, Shape shape);
/// Returns x[start:end:step] along a dimension, with Python's rules for negative, excessive and
/// absent bounds; step > 0.
Tensor slice(const Tensor& x, int dim, std::optional<int64_t> start,
             std::optional<int64_t> end = {}, int64_t step = 1);
/// Returns the slice of x at `index` of a dimension, without this dimension. As torch.select.
Tensor select(const Tensor& x, int dim, int64_t index);
/// Removes dimensions of size 1, or only `dim` if its size is 1.
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, int dim);
Tensor unsqueeze(const Tensor& x, int dim);
Tensor cat(const std::vector<Tensor>& inputs, int dim = 0);
/// Joins tensors of one shape along a new dimension. As torch.stack.
Tensor stack(const std::vector<Tensor>& inputs, int dim = 0);
/// As torch.nn.functional.pad (constant): pairs (before, after) from the last dimension backwards;
/// negative amounts crop. Other modes: see PadMode below.
Tensor pad(const Tensor& x, const Dims& pairs_from_last, Number value = 0);
Tensor contiguous(const Tensor& x);

// Functions that split and join tensors along dimensions: flip, split, chunk, triangles of
// matrices, and borders that repeat inner elements.

/// The elements of some dimensions in the opposite order; flips dy in the same way.
struct Flip {
  static constexpr OpInfo info{"flip", CastClass::as_is, cast_reason::moves};
  Dims dims;  // each once

  Tensor flipped(const Tensor& x) const {
    Strides strides = x.strides();
    int64_t first = x.offset();
    for (const int64_t d : dims) {
      first += (x.shape()[int(d)] - 1) * strides[int(d)];
      strides[int(d)] *= -1;
    }
    Tensor y = empty_like(x);
    if (x.numel() > 0) backend_for(x).copy(x.view_as(x.shape(), strides, first), y);
    return y;
  }
  Tensor forward(const Tensor& x) { return flipped(x); }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {flipped(dy)}; }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// As torch.flip.
Tensor flip(const Tensor& x, const Dims& dims);
/// Returns views of `size` elements each along a dimension; the last has the rest. As torch.split.
std::vector<Tensor> split(const Tensor& x, int64_t size, int dim = 0);
/// Returns views of these sizes, which must add up to the dimension.
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int dim = 0);
/// Returns at most `count` views of one size; the last may be smaller. There are fewer if rounding
/// the size up fills the dimension earlier. As torch.chunk.
std::vector<Tensor> chunk(const Tensor& x, int64_t count, int dim = 0);
/// tril() returns matrices [.., m, n] with 0 above the diagonal, triu() with 0 below it. A diagonal
/// > 0 is above the main one. As torch.tril and torch.triu.
Tensor tril(const Tensor& x, int64_t diagonal = 0);
Tensor triu(const Tensor& x, int64_t diagonal = 0);

/// Repeats x as often as `times` says along each dimension, aligned at the last. As torch.tile.
Tensor tile(const Tensor& x, const Dims& times);
/// Shifts elements along dimensions; elements that leave at the end enter at the start. Without
/// dimensions all elements form one. As torch.roll.
Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims = {});
/// Returns the diagonals of the matrices of two dimensions, as the last dimension; `offset` > 0 is
/// above the main one. As torch.diagonal.
Tensor diagonal(const Tensor& x, int64_t offset = 0, int dim1 = 0, int dim2 = 1);
/// Returns vectors (or numbers) as the coordinates of a grid, each expanded to its shape: x[i]
/// varies along dimension i. As torch.meshgrid; with "xy" the first two dimensions are exchanged.
std::vector<Tensor> meshgrid(const std::vector<Tensor>& x, std::string_view indexing = "ij");
/// Returns [.., c r r, h, w] as [.., c, h r, w r]. As torch.nn.functional.pixel_shuffle.
Tensor pixel_shuffle(const Tensor& x, int64_t factor);

/// Returns [.., c, h r, w r] as [.., c r r, h, w]. As torch.nn.functional.pixel_unshuffle.
Tensor pixel_unshuffle(const Tensor& x, int64_t factor);
/// Returns the parts of size 1 along a dimension, without this dimension. As torch.unbind.
std::vector<Tensor> unbind(const Tensor& x, int dim = 0);
/// Moves dimensions to other places; the others keep their order. As torch.movedim.
Tensor movedim(const Tensor& x, const Dims& from, const Dims& to);
/// Splits one dimension into several of these sizes; one size may be -1. As torch.unflatten.
Tensor unflatten(const Tensor& x, int dim, const Shape& sizes);
/// hstack() joins tensors along dimension 1, vectors along 0. vstack() joins along dimension 0,
/// vectors as rows. As torch.hstack and torch.vstack.
Tensor hstack(const std::vector<Tensor>& inputs);
Tensor vstack(const std::vector<Tensor>& inputs);

enum class PadMode : uint8_t {
  reflect,    // 2 1 | 0 1 2 3 | 2 1
  replicate,  // 0 0 | 0 1 2 3 | 3 3
  circular,   // 2 3 | 0 1 2 3 | 0 1
};
/// As torch.nn.functional.pad with these modes, for any dimensions; negative amounts crop.
Tensor pad(const Tensor& x, const Dims& pairs_from_last, PadMode mode);

}  // namespace halftone
