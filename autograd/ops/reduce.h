// Reductions over some or all dimensions: sum, mean, var, max, min, prod, norm, argmax,
// cumsum. They accumulate in f32 or wider whatever the dtype, and give the same result for any
// number of threads.
#pragma once

#include <cmath>
#include <limits>

#include <halftone/autograd/ops/elementwise.h>
#include <halftone/autograd/ops/shape.h>

namespace halftone {

/// Which dimensions a reduction runs over (none named: all) and whether they stay as sizes of 1.
struct ReduceDims {
  Dims dims{};
  bool keep = false;

  /// x's shape with 1 in the reduced dimensions.
  Shape kept_shape(std::string_view op, const Shape& shape) const {
    Shape kept = dims.empty() ? Dims::filled(shape.rank(), 1) : shape;
    for (int64_t dim : dims)
      if (const int d = normalize_dim(op, dim, shape.rank()); shape.rank()) kept[d] = 1;
    return kept;
  }
  /// The shape of the result.
  Shape result_shape(std::string_view op, const Shape& shape) const {
    if (keep) return kept_shape(op, shape);
    if (dims.empty()) return {};
    Dims reduced = Dims::filled(shape.rank(), 0);
    for (int64_t dim : dims)
      if (const int d = normalize_dim(op, dim, shape.rank()); shape.rank()) reduced[d] = 1;
    Shape result;
    for (int i = 0; i < shape.rank(); ++i)
      if (!reduced[i]) result.push_back(shape[i]);
    return result;
  }
};

namespace detail {
/// The reduced tensor with sizes of 1 kept.
inline Tensor reduce_keeping(std::string_view op, Reduction kind, const Tensor& x,
                             const ReduceDims& over, DType dtype) {
  Tensor y = empty(over.kept_shape(op, x.shape()), dtype, x.device());
  backend_for(x).reduce(kind, x, y);
  return y;
}
inline Tensor reduce_keeping(std::string_view op, Reduction kind, const Tensor& x,
                             const ReduceDims& over) {
  check::floating(op, x);
  return reduce_keeping(op, kind, x, over, x.dtype());
}
inline Tensor as_shape(const Tensor& contiguous, const Shape& shape) {
  return contiguous.view_as(shape, contiguous_strides(shape), contiguous.offset());
}
/// dy, of the result's shape, seen under the shape with sizes of 1 kept.
inline Tensor keeping(const Tensor& dy, const Shape& kept) { return views::reshaped(dy, kept); }
}  // namespace detail

struct Sum {
  static constexpr OpInfo info{"sum", CastClass::full_precision};
  ReduceDims over;
  bool f32_result = false;
  Shape from{};
  DType dtype{};

  Tensor forward(const Tensor& x) {
    check::floating("sum", x);
    from = x.shape(), dtype = x.dtype();
    return detail::as_shape(
        detail::reduce_keeping("sum", Reduction::sum, x, over, f32_result ? f32 : dtype),
        over.result_shape("sum", from));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    const Tensor kept = detail::keeping(cast(dy, dtype), over.kept_shape("sum", from));
    return {views::expand(kept, from)};
  }
};

struct Mean {
  static constexpr OpInfo info{"mean", CastClass::as_is};
  ReduceDims over;
  Shape from{};

  Tensor forward(const Tensor& x) {
    check::floating("mean", x);
    from = x.shape();
    return detail::as_shape(detail::reduce_keeping("mean", Reduction::mean, x, over),
                            over.result_shape("mean", from));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    const double count = double(numel_of(from)) / double(std::max<int64_t>(dy.numel(), 1));
    return {views::expand(detail::keeping(dy * (1 / count), over.kept_shape("mean", from)), from)};
  }
};

/// Variance: the sum of squared distances from the mean over (count - correction). The mean, the
/// distances and their squares are f32 or wider.
struct Var {
  static constexpr OpInfo info{"var", CastClass::as_is};
  ReduceDims over;
  double correction = 1;
  Tensor x{}, mean{};  // mean: f32 or wider, keeps sizes of 1

  double divisor() const;
  Tensor forward(const Tensor& in);
  std::array<Tensor, 1> backward(const Tensor& dy) const;
};

namespace detail {
/// The gradient of max and min: equal parts to all elements that attain it, as torch.amax.
Tensor extremum_backward(const Tensor& x, const Tensor& extremum, const Tensor& dy);
inline void require_elements(std::string_view op, const Tensor& x) {
  check::floating(op, x);
  if (x.numel() == 0) fail<ShapeError>(op, described(x), " has no elements. Reduce at least one.");
}
}  // namespace detail

struct Max {
  static constexpr OpInfo info{"max", CastClass::as_is};
  ReduceDims over;
  Tensor x{}, y{};  // y keeps sizes of 1

  Tensor forward(const Tensor& in) {
    detail::require_elements("max", in);
    x = in, y = detail::reduce_keeping("max", Reduction::max, x, over);
    return detail::as_shape(y, over.result_shape("max", x.shape()));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    return {detail::extremum_backward(x, y, dy)};
  }
};

struct Min {
  static constexpr OpInfo info{"min", CastClass::as_is};
  ReduceDims over;
  Tensor x{}, y{};

  Tensor forward(const Tensor& in) {
    detail::require_elements("min", in);
    x = in, y = detail::reduce_keeping("min", Reduction::min, x, over);
    return detail::as_shape(y, over.result_shape("min", x.shape()));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    return {detail::extremum_backward(x, y, dy)};
  }
};

/// Product. An element's gradient is the product of the others, also where some are 0.
struct Prod {
  static constexpr OpInfo info{"prod", CastClass::full_precision};
  ReduceDims over;
  bool f32_result = false;
  Tensor x{};

  Tensor forward(const Tensor& in) {
    check::floating("prod", in);
    x = in;
    return detail::as_shape(
        detail::reduce_keeping("prod", Reduction::prod, x, over, f32_result ? f32 : x.dtype()),
        over.result_shape("prod", x.shape()));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const;
};

/// Euclidean norm; its gradient at 0 is 0. Squares are summed in f64, where those of no f32
/// overflow or vanish; of f64 they do below 1e-162 and above 1e154, as PyTorch's.
struct Norm {
  static constexpr OpInfo info{"norm", CastClass::full_precision};
  ReduceDims over;
  bool f32_result = false;
  Tensor x{}, y{};  // y: f32 or wider, keeps sizes of 1

  Tensor forward(const Tensor& in);
  std::array<Tensor, 1> backward(const Tensor& dy) const;
};

/// Position of the largest element along the last dimension.
struct ArgMax {
  static constexpr OpInfo info{"argmax", CastClass::as_is};
  Tensor forward(const Tensor& x) {
    const Tensor rows = views::contiguous(x);
    Shape shape = x.shape();
    shape.erase(x.rank() - 1);
    Tensor index = empty(shape, i64, x.device());
    backend_for(x).arg_reduce(true, rows, index);
    return index;
  }
};

/// Running sum along the last dimension.
struct CumulativeSum {
  static constexpr OpInfo info{"cumsum", CastClass::full_precision};
  bool f32_result = false;
  DType from{};

  Tensor along(const Tensor& x, bool reverse, DType dtype) const {
    check::floating("cumsum", x);
    Tensor y = empty(x.shape(), dtype, x.device());
    backend_for(x).cumulative_sum(views::contiguous(x), reverse, y);
    return y;
  }
  Tensor forward(const Tensor& x) {
    from = x.dtype();
    return along(x, false, f32_result ? f32 : from);
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {along(dy, true, from)}; }
};

inline Tensor sum(const Tensor& x, const Dims& dims = {}, bool keep = false) {
  return apply(Sum{.over = {dims, keep}}, x);
}
inline Tensor mean(const Tensor& x, const Dims& dims = {}, bool keep = false) {
  return apply(Mean{.over = {dims, keep}}, x);
}
/// As torch.var: correction 1 is the unbiased estimate.
inline Tensor var(const Tensor& x, const Dims& dims = {}, double correction = 1,
                  bool keep = false) {
  return apply(Var{.over = {dims, keep}, .correction = correction}, x);
}
/// As torch.amax: ties share the gradient.
inline Tensor max(const Tensor& x, const Dims& dims = {}, bool keep = false) {
  return apply(Max{.over = {dims, keep}}, x);
}
inline Tensor min(const Tensor& x, const Dims& dims = {}, bool keep = false) {
  return apply(Min{.over = {dims, keep}}, x);
}
/// As torch.prod, over any number of dimensions.
inline Tensor prod(const Tensor& x, const Dims& dims = {}, bool keep = false) {
  return apply(Prod{.over = {dims, keep}}, x);
}
/// Euclidean norm. As torch.linalg.vector_norm.
inline Tensor norm(const Tensor& x, const Dims& dims = {}, bool keep = false) {
  return apply(Norm{.over = {dims, keep}}, x);
}

namespace detail {
/// Runs a last-dimension operation along `dim`: the dimension is moved back and forth by recorded
/// views.
template <class Op> Tensor along_dim(Op op, const Tensor& x, int dim) {
  check::defined(Op::info.name, "the input", x);
  const int d = normalize_dim(Op::info.name, dim, x.rank());
  if (x.rank() == 0) return reshape(along_dim(std::move(op), reshape(x, {1}), 0), {});
  if (d == x.rank() - 1) return apply(std::move(op), x);
  return transpose(apply(std::move(op), transpose(x, d, -1)), d, -1);
}
}  // namespace detail

inline Tensor cumsum(const Tensor& x, int dim) {
  return detail::along_dim(CumulativeSum{}, x, dim);
}
/// i64 positions along `dim`, which disappears; the first of equals, NaN counts as largest.
inline Tensor argmax(const Tensor& x, int dim = -1) {
  detail::require_elements("argmax", x);
  const int d = normalize_dim("argmax", dim, x.rank());
  if (x.rank() == 0) return reshape(argmax(reshape(x, {1}), 0), {});
  Dims order;
  for (int i = 0; i < x.rank(); ++i)
    if (i != d) order.push_back(i);
  order.push_back(d);
  return apply(ArgMax{}, d == x.rank() - 1 ? x : permute(x, order));
}

}  // namespace halftone
