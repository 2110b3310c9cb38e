// Sorting. It sorts the positions, i64; values follow by gather(), which also gives their gradient.
#pragma once

#include <halftone/autograd/ops/index.h>
#include <halftone/autograd/ops/reduce.h>

namespace halftone {

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
/// Returns the k largest (or smallest) in order, the first of equals first. As torch.topk.
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

/// Return the largest (smallest) along a dimension and its position: the first of equals; NaN wins.
/// The gradient goes to that element. As torch.max(x, dim), torch.min(x, dim).
Sorted max_with_indices(const Tensor& x, int dim, bool keep = false);
Sorted min_with_indices(const Tensor& x, int dim, bool keep = false);
/// Returns the lower median along `dim` and its position; NaN if there is one. As torch.median.
Sorted median(const Tensor& x, int dim, bool keep = false);
/// Returns the median of all elements; elements equal to it share the gradient.
Tensor median(const Tensor& x);
/// Returns quantiles of f32 or f64, interpolated between elements; NaN if there is one. Without a
/// dimension, over all elements. Several quantiles add a first dimension. As torch.quantile.
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

}  // namespace halftone
