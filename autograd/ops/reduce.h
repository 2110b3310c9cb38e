// Reductions over some or all dimensions: sum, mean, var, max, min, prod, norm, argmax, argmin, and
// running sums and products. Sums and products of integers are i64. They accumulate in f32 or wider
// for any dtype, and give the same result for any number of threads.
#pragma once

#include <cmath>
#include <limits>

#include <halftone/autograd/ops/elementwise.h>
#include <halftone/autograd/ops/shape.h>

namespace halftone {

/// The dimensions of a reduction (none named: all) and whether they stay as sizes of 1.
struct ReduceDims {
  Dims dims{};
  bool keep = false;

  /// Returns 1 for each dimension in `dims`, 0 for others; throws ShapeError if one is repeated.
  Dims named(std::string_view op, int rank) const {
    Dims count = Dims::filled(rank, 0);
    for (int64_t dim : dims)
      if (const int d = normalize_dim(op, dim, rank); rank > 0 && ++count[d] > 1)
        fail<ShapeError>(op, "dimension ", d, " is given twice in ", dims, ". Name it once.");
    return count;
  }
  /// Returns x's shape with 1 in the reduced dimensions.
  Shape kept_shape(std::string_view op, const Shape& shape) const {
    if (dims.empty()) return Dims::filled(shape.rank(), 1);
    const Dims reduced = named(op, shape.rank());
    Shape kept = shape;
    for (int i = 0; i < shape.rank(); ++i)
      if (reduced[i]) kept[i] = 1;
    return kept;
  }
  /// Returns the shape of the result.
  Shape result_shape(std::string_view op, const Shape& shape) const {
    if (keep) return kept_shape(op, shape);
    if (dims.empty()) return {};
    const Dims reduced = named(op, shape.rank());
    Shape result;
    for (int i = 0; i < shape.rank(); ++i)
      if (!reduced[i]) result.push_back(shape[i]);
    return result;
  }
};

namespace detail {
/// Returns the reduced tensor with sizes of 1 kept.
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
/// Returns dy, which has the result's shape, under the shape that keeps sizes of 1.
inline Tensor keeping(const Tensor& dy, const Shape& kept) { return views::reshaped(dy, kept); }
}  // namespace detail

namespace detail {
/// Returns the dtype of sums and products of x: i64 for integers and bools, as in PyTorch; else f32
/// if f32_result, else x's dtype.
inline DType accumulated_dtype(std::string_view op, const Tensor& x, bool f32_result) {
  check::numbers_or_bool(op, x);
  return !is_floating(x.dtype()) ? i64 : (f32_result ? f32 : x.dtype());
}
}  // namespace detail

struct Sum {
  static constexpr OpInfo info{"sum", CastClass::full_precision, cast_reason::grows};
  ReduceDims over;
  bool f32_result = false;
  Shape from{};
  DType dtype{};

  Tensor forward(const Tensor& x) {
    const DType wide = detail::accumulated_dtype("sum", x, f32_result);
    from = x.shape(), dtype = x.dtype();
    return detail::as_shape(detail::reduce_keeping("sum", Reduction::sum, x, over, wide),
                            over.result_shape("sum", from));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    const Tensor kept = detail::keeping(cast(dy, dtype), over.kept_shape("sum", from));
    return {views::expand(kept, from)};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

struct Mean {
  static constexpr OpInfo info{"mean", CastClass::as_is, cast_reason::a_mean};
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
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Variance: the sum of squared distances from the mean over (count - correction). The mean and the
/// distances are f32 or wider, their squares f64.
struct Var {
  static constexpr OpInfo info{"var", CastClass::as_is,
                               "by PyTorch's list alone; deviations are summed in f32 inside"};
  ReduceDims over;
  double correction = 1;
  bool f64_result = false;
  Tensor x{}, mean{};  // mean: f32 or wider, keeps sizes of 1

  double divisor() const;
  Tensor forward(const Tensor& in);
  std::array<Tensor, 1> backward(const Tensor& dy) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

namespace detail {
/// Returns the gradient of max and min: equal parts to all extreme elements, as torch.amax.
Tensor extremum_backward(const Tensor& x, const Tensor& extremum, const Tensor& dy);
/// Throws ShapeError if x has no elements but the result has: an empty row has no largest element.
inline void require_elements(std::string_view op, const Tensor& x, const ReduceDims& over) {
  check::numbers_or_bool(op, x);
  if (x.numel() == 0 && numel_of(over.result_shape(op, x.shape())) > 0)
    fail<ShapeError>(op, described(x), " has no elements. Reduce at least one.");
}
}  // namespace detail

struct Max {
  static constexpr OpInfo info{"max", CastClass::as_is, cast_reason::chooses};
  ReduceDims over;
  Tensor x{}, y{};  // y keeps sizes of 1

  Tensor forward(const Tensor& in) {
    detail::require_elements("max", in, over);
    x = in, y = detail::reduce_keeping("max", Reduction::max, x, over, x.dtype());
    return detail::as_shape(y, over.result_shape("max", x.shape()));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    return {detail::extremum_backward(x, y, dy)};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

struct Min {
  static constexpr OpInfo info{"min", CastClass::as_is, cast_reason::chooses};
  ReduceDims over;
  Tensor x{}, y{};

  Tensor forward(const Tensor& in) {
    detail::require_elements("min", in, over);
    x = in, y = detail::reduce_keeping("min", Reduction::min, x, over, x.dtype());
    return detail::as_shape(y, over.result_shape("min", x.shape()));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    return {detail::extremum_backward(x, y, dy)};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Product. An element's gradient is the product of the others, even if some are 0.
struct Prod {
  static constexpr OpInfo info{"prod", CastClass::full_precision, cast_reason::powers};
  ReduceDims over;
  bool f32_result = false;
  Tensor x{};

  Tensor forward(const Tensor& in) {
    const DType wide = detail::accumulated_dtype("prod", in, f32_result);
    x = in;
    return detail::as_shape(detail::reduce_keeping("prod", Reduction::prod, x, over, wide),
                            over.result_shape("prod", x.shape()));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// The norm of order p, (sum |x|^p)^(1/p); 0: the number of nonzero elements; infinite: the largest
/// or the smallest |x|. Its gradient at 0 is 0. Powers are summed in f64, where f32 squares never
/// overflow or vanish; f64 ones do below 1e-162 and above 1e154, as PyTorch's.
struct Norm {
  static constexpr OpInfo info{"norm", CastClass::full_precision, cast_reason::grows};
  ReduceDims over;
  double p = 2;
  bool f32_result = false;
  Tensor x{}, y{};  // y: f32 or wider, keeps sizes of 1

  Tensor forward(const Tensor& in);
  std::array<Tensor, 1> backward(const Tensor& dy) const;
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

namespace detail {
inline Tensor place_of_extreme(bool largest, const Tensor& x) {
  Shape shape = x.shape();
  shape.erase(x.rank() - 1);
  Tensor index = empty(shape, i64, x.device());
  backend_for(x).arg_reduce(largest, views::contiguous(x), index);
  return index;
}
}  // namespace detail

/// Position of the largest element along the last dimension.
struct ArgMax {
  static constexpr OpInfo info{"argmax", CastClass::as_is, cast_reason::chooses};
  Tensor forward(const Tensor& x) { return detail::place_of_extreme(true, x); }
};
/// Position of the smallest element along the last dimension.
struct ArgMin {
  static constexpr OpInfo info{"argmin", CastClass::as_is, cast_reason::chooses};
  Tensor forward(const Tensor& x) { return detail::place_of_extreme(false, x); }
};

/// Running sum along the last dimension.
struct CumulativeSum {
  static constexpr OpInfo info{"cumsum", CastClass::full_precision, cast_reason::grows};
  bool f32_result = false;
  DType from{};

  Tensor along(const Tensor& x, bool reverse, DType dtype) const {
    Tensor y = empty(x.shape(), dtype, x.device());
    backend_for(x).cumulative_sum(views::contiguous(x), reverse, y);
    return y;
  }
  Tensor forward(const Tensor& x) {
    from = x.dtype();
    return along(x, false, detail::accumulated_dtype("cumsum", x, f32_result));
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {along(dy, true, from)}; }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
};

/// Running product along the last dimension.
struct CumulativeProduct {
  static constexpr OpInfo info{"cumprod", CastClass::full_precision, cast_reason::powers};
  bool f32_result = false;
  Tensor x{};

  Tensor forward(const Tensor& in) {
    x = views::contiguous(in);
    Tensor y = empty(x.shape(), detail::accumulated_dtype("cumprod", x, f32_result), x.device());
    backend_for(x).cumulative_product(x, y);
    return y;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const {
    Tensor dx = empty(x.shape(), x.dtype(), x.device());
    backend_for(x).cumulative_product_backward(x, views::contiguous(dy), dx);
    return {dx};
  }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History& history) const;
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
/// Returns the square root of var(), in f64 until the result; if it is 0 its gradient is 0. As
/// torch.std.
inline Tensor std(const Tensor& x, const Dims& dims = {}, double correction = 1,
                  bool keep = false) {
  check::floating("std", x);
  const Tensor wide = cast(x, x.dtype() == f64 ? f64 : f32);
  const Tensor variance =
      apply(Var{.over = {dims, keep}, .correction = correction, .f64_result = true}, wide);
  const Tensor is_zero = variance == 0;
  return cast(where(is_zero, 0, sqrt(where(is_zero, 1, variance))), x.dtype());
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
/// Returns the Euclidean norm. As torch.linalg.vector_norm.
inline Tensor norm(const Tensor& x, const Dims& dims = {}, bool keep = false) {
  return apply(Norm{.over = {dims, keep}}, x);
}
/// Returns the norm of any order p, also 0, negative, infinite. As torch.linalg.vector_norm(x, p).
inline Tensor vector_norm(const Tensor& x, double p = 2, const Dims& dims = {}, bool keep = false) {
  return apply(Norm{.over = {dims, keep}, .p = p}, x);
}

namespace detail {
/// Runs a last-dimension operation along `dim`: recorded views move the dimension to the end, and
/// back.
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
/// Returns the running product along `dim`, in f64; i64 for integers. As torch.cumprod.
inline Tensor cumprod(const Tensor& x, int dim) {
  return detail::along_dim(CumulativeProduct{}, x, dim);
}

namespace detail {
template <class Op> Tensor place_along(Op op, const Tensor& x, int dim, bool keep) {
  check::defined(Op::info.name, "the input", x);
  const int d = normalize_dim(Op::info.name, dim, x.rank());
  require_elements(Op::info.name, x, {.dims = {d}});
  if (x.rank() == 0) return reshape(place_along(op, reshape(x, {1}), 0, false), {});
  Dims order;
  for (int i = 0; i < x.rank(); ++i)
    if (i != d) order.push_back(i);
  order.push_back(d);
  const Tensor place = apply(op, d == x.rank() - 1 ? x : permute(x, order));
  return keep ? unsqueeze(place, d) : place;
}

/// Without a dimension, returns the position among all elements, in row-major order.
template <class Op> Tensor place_of(Op op, const Tensor& x, std::optional<int> dim, bool keep) {
  check::defined(Op::info.name, "the input", x);
  if (dim) return place_along(op, x, *dim, keep);
  const Tensor place = place_along(op, reshape(x, {x.numel()}), 0, false);
  if (!keep) return place;
  Shape ones;
  for (int i = 0; i < x.rank(); ++i) ones.push_back(1);
  return reshape(place, ones);
}
}  // namespace detail
/// Returns i64 positions along `dim`, which is removed unless kept; without one, the position among
/// all elements. The first of equal elements wins, and NaN counts as largest. As torch.argmax.
inline Tensor argmax(const Tensor& x, std::optional<int> dim = {}, bool keep = false) {
  return detail::place_of(ArgMax{}, x, dim, keep);
}
/// Returns the positions of the smallest elements; NaN counts as smallest. As torch.argmin.
inline Tensor argmin(const Tensor& x, std::optional<int> dim = {}, bool keep = false) {
  return detail::place_of(ArgMin{}, x, dim, keep);
}

}  // namespace halftone
