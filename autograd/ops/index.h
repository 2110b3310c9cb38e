// Elements by index and in order: gather, scatter, sort, embeddings.
#pragma once

#include <halftone/autograd/ops/elementwise.h>
#include <halftone/autograd/ops/reduce.h>

namespace halftone {

// Picks elements by indices along one dimension, and the adjoint. Indices are i64 or i32; one out
// of range is an error, at once on the CPU and at the next wait on a GPU.

namespace detail {
/// Returns indices as kernels take them, i64. Throws DTypeError for other dtypes than i64 and i32.
inline Tensor wide_indices(std::string_view op, std::string_view what, const Tensor& index) {
  check::integers(op, what, index);
  return index.dtype() == i64 ? index : converted(index, i64);
}
/// Does the same. For indices on the CPU, throws UsageError naming `op` if one is outside of 0 to
/// size - 1.
Tensor indices_within(std::string_view op, const Tensor& index, int64_t size);
/// Returns the part of x that indices of this shape reach: x cut to `shape` in every dimension but
/// `dim`. Throws ShapeError if x is smaller there.
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
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
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
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
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
/// Returns gather(x, dim, index) after x and index are broadcast in all dimensions but `dim`.
/// Without `dim`, indexes all elements in row-major order. Negative indices count from the end. As
/// torch.take_along_dim.
Tensor take_along_dim(const Tensor& x, const Tensor& index, std::optional<int> dim = {});

/// Returns x[i, j, ...]: elements by index tensors, one for each dimension from the first on, which
/// broadcast. An undefined tensor takes a whole dimension, as None; a bool mask takes as many
/// dimensions as it has (the GPU waits for it). Negative indices count from the end. As PyTorch's
/// x[i, j], but always a copy.
Tensor index(const Tensor& x, const std::vector<Tensor>& indices);
/// Returns x with x[i, j, ...] = values, or with them added (accumulate). The values broadcast, and
/// have x's dtype. If several values have one place, the last counts and alone gets a gradient. As
/// torch.index_put.
Tensor index_put(const Tensor& x, const std::vector<Tensor>& indices, const Tensor& values,
                 bool accumulate = false);
/// Return x with its slices at `index`, a vector, along a dimension replaced. index_fill() replaces
/// all by a number; index_copy() replaces slice index[i] by slice i of source, and if an index
/// occurs twice, the last counts. As torch.index_fill and torch.index_copy.
Tensor index_fill(const Tensor& x, int dim, const Tensor& index, Number value);
Tensor index_copy(const Tensor& x, int dim, const Tensor& index, const Tensor& source);
/// Returns x with its elements where the mask is true replaced by the first elements of source, in
/// row-major order. Waits for the GPU. As torch.masked_scatter.
Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& source);

enum class ScatterReduction : uint8_t { sum, mean, amax, amin, prod };
/// Returns x with its elements at index[i] along a dimension reduced together with all source[i],
/// or replaced by the reduction of these (include_self false). Equal extremes share the gradient.
/// As torch.scatter_reduce.
Tensor scatter_reduce(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
                      ScatterReduction reduction, bool include_self = true);
/// Repeats slices along a dimension: each one `repeats` times, or slice i repeats[i] times. The
/// host reads a tensor of repeats. Without a dimension, x is flattened. As torch.repeat_interleave.
Tensor repeat_interleave(const Tensor& x, int64_t repeats, std::optional<int> dim = {});
Tensor repeat_interleave(const Tensor& x, const Tensor& repeats, std::optional<int> dim = {});
/// Returns i64 [n] or [rows, n]: categories drawn by their probabilities, a vector or rows that
/// need not sum to 1. The host draws. Without replacement, no category is drawn twice in a row of
/// the result. Throws UsageError for probabilities that cannot be drawn from. As torch.multinomial.
Tensor multinomial(const Tensor& probabilities, int64_t n, bool replacement = false);

/// Returns i64 [count, rank]: where x is not 0, row-major. Waits for the GPU. As torch.nonzero.
Tensor nonzero(const Tensor& x);
/// Returns the elements of x where the mask is true, as a vector; both broadcast. Waits for the
/// GPU. As torch.masked_select.
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// Returns `value` where the mask is true, else x. As torch.masked_fill, but refuses every value
/// that x's dtype cannot hold: a fraction for integers, a negative number for u8.
Tensor masked_fill(const Tensor& x, const Tensor& mask, Number value);
/// Returns i64 [.., classes], 1 at the index and 0 elsewhere. classes -1: the largest index + 1,
/// which the host reads. As torch.nn.functional.one_hot.
Tensor one_hot(const Tensor& index, int64_t classes = -1);

// Sorting. It sorts the positions, i64; values follow by gather(), which also gives their gradient.

/// The positions of the elements of the last dimension in sorted order; equal elements keep their
/// order, NaN is largest.
struct ArgSort {
  static constexpr OpInfo info{"argsort", CastClass::as_is, cast_reason::chooses};
  bool descending;

  Tensor forward(const Tensor& x) {
    check::numbers_or_bool("argsort", x);
    Tensor index = empty(x.shape(), i64, x.device());
    backend_for(x).argsort(views::contiguous(x), descending, index);
    return index;
  }
};

/// As torch.argsort with stable=True.
inline Tensor argsort(const Tensor& x, int dim = -1, bool descending = false) {
  return detail::along_dim(ArgSort{descending}, x, dim);
}

struct Sorted {
  Tensor values, indices;
};
/// As torch.sort with stable=True: equal elements keep their order, NaN counts as largest.
inline Sorted sort(const Tensor& x, int dim = -1, bool descending = false) {
  check::defined("sort", "the input", x);
  const Tensor indices = argsort(x, dim, descending);
  return {gather(x, dim, indices), indices};
}
/// Returns the k largest (or smallest) in order; equal ones stay in x's order. As torch.topk.
inline Sorted topk(const Tensor& x, int64_t k, int dim = -1, bool largest = true) {
  check::defined("topk", "the input", x);
  const int d = normalize_dim("topk", dim, x.rank());
  const int64_t size = x.rank() == 0 ? 1 : x.shape()[d];
  if (k < 0 || k > size)
    fail<UsageError>("topk", "k is ", k, " for ", size, " elements. Use 0 to ", size, ".");
  const Tensor all = argsort(x, d, largest);
  if (x.rank() == 0) return {x, all};
  const Tensor indices = slice(all, d, 0, k);
  return {gather(x, d, indices), indices};
}

/// Return the largest (smallest) element along a dimension and its position: the first of equal
/// ones; a NaN wins. The gradient goes to that element. As torch.max(x, dim), torch.min(x, dim).
Sorted max_with_indices(const Tensor& x, int dim, bool keep = false);
Sorted min_with_indices(const Tensor& x, int dim, bool keep = false);
/// Returns the lower median along `dim` and its position; NaN if any element is. As torch.median.
Sorted median(const Tensor& x, int dim, bool keep = false);
/// Returns the median of all elements; elements equal to it share the gradient.
Tensor median(const Tensor& x);
/// Returns quantiles of f32 or f64, interpolated between elements; NaN if any element is. Without a
/// dimension, they are over all elements. Several quantiles add a first dimension. As
/// torch.quantile.
Tensor quantile(const Tensor& x, double q, std::optional<int> dim = {}, bool keep = false);
Tensor quantile(const Tensor& x, const std::vector<double>& q, std::optional<int> dim = {},
                bool keep = false);

struct Unique {
  Tensor values;   // in ascending order, each NaN separately
  Tensor inverse;  // i64, of x's shape: the position of each element in values
  Tensor counts;   // i64: the count of each value in x
};
/// Returns the distinct elements of x. Waits for the GPU. As torch.unique with all three results.
Unique unique(const Tensor& x);

/// Return the largest (smallest) element up to each place along a dimension, and its position: the
/// last of equal ones; a NaN wins. The gradient goes to those elements. As torch.cummax, cummin.
Sorted cummax(const Tensor& x, int dim);
Sorted cummin(const Tensor& x, int dim);

// Counts, and places in sorted sequences.

/// Returns how often 0, 1, .. occur in x, a vector of integers: i64, at least `minlength` of them.
/// With weights of x's shape, returns the sums of these: f32 for f32 weights, else f64. Reads x on
/// the host. As torch.bincount.
Tensor bincount(const Tensor& x, const Tensor& weights = {}, int64_t minlength = 0);
/// Returns how many elements are in each of `bins` equal parts of [low, high], in x's dtype; other
/// elements are left out. If low == high the range is that of x, which the host reads. As
/// torch.histc.
Tensor histc(const Tensor& x, int64_t bins = 100, double low = 0, double high = 0);
/// Returns i64: the index in the last dimension of `sorted` at which each value could be inserted
/// so that the order stays, before elements that equal it, or after them if `right`. `sorted` is a
/// vector, or has the sizes of `values` in all other dimensions. As torch.searchsorted.
Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool right = false);
/// Returns searchsorted(boundaries, x, right), for a vector of boundaries. As torch.bucketize.
Tensor bucketize(const Tensor& x, const Tensor& boundaries, bool right = false);

// embedding: rows of a table by index; the gradient scatters back into the table.

/// y[i.., :] = table[indices[i..], :]. Index `padding_index`, if not negative, gives no gradient.
struct Embedding {
  static constexpr OpInfo info{"embedding", CastClass::as_is, cast_reason::moves};
  int64_t padding_index;
  Tensor indices{};
  Shape table_shape{};

  Tensor forward(const Tensor& table, const Tensor& which) {
    check::rank("embedding", "the table", table, 2);
    check::floating("embedding", table);
    indices = views::contiguous(detail::wide_indices("embedding", "indices", which));
    table_shape = table.shape();
    Shape shape = which.shape();
    shape.push_back(table.shape()[1]);
    Tensor y = empty(shape, table.dtype(), table.device());
    Tensor rows = detail::as_shape(y, {indices.numel(), table.shape()[1]});
    backend_for(table).gather_rows(views::contiguous(table),
                                   detail::as_shape(indices, {indices.numel()}), rows);
    return y;
  }
  std::array<Tensor, 2> backward(const Tensor& dy) const {
    Tensor dtable = empty(table_shape, dy.dtype(), dy.device());
    const Tensor rows = detail::as_shape(views::contiguous(dy), {indices.numel(), table_shape[1]});
    backend_for(dy).scatter_add_rows(rows, detail::as_shape(indices, {indices.numel()}),
                                     padding_index, dtable);
    return {dtable, Tensor{}};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// As torch.nn.functional.embedding(indices, table, padding_idx).
inline Tensor embedding(const Tensor& indices, const Tensor& table, int64_t padding_index = -1) {
  return apply(Embedding{.padding_index = padding_index}, table, indices);
}

}  // namespace halftone
