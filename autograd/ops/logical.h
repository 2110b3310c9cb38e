// Operations on truth values and integers, and functions that take a number in place of a tensor.
#pragma once

#include <limits>
#include <utility>

#include <halftone/autograd/ops/reduce.h>
#include <halftone/autograd/ops/sequences.h>

namespace halftone {

// Tests whose result is bool. Everything but 0 is true, also NaN.

namespace detail {
inline Tensor as_bool(std::string_view op, const Tensor& x) {
  check::numbers_or_bool(op, x);
  return cast(x, boolean);
}
/// Returns the max or min of x as bools; `of_none` for a reduction over no elements.
inline Tensor reduce_bools(std::string_view op, Reduction kind, const Tensor& x,
                           const ReduceDims& over, bool of_none) {
  const Tensor truth = as_bool(op, x);
  const Tensor y = truth.numel() > 0
                       ? reduce_keeping(op, kind, truth, over, boolean)
                       : full(over.kept_shape(op, x.shape()), of_none, boolean, x.device());
  return as_shape(y, over.result_shape(op, x.shape()));
}
}  // namespace detail

/// Returns whether any element is true; false without elements.
struct Any {
  static constexpr OpInfo info{"any", CastClass::as_is, cast_reason::truth};
  ReduceDims over;
  Tensor forward(const Tensor& x) {
    return detail::reduce_bools("any", Reduction::max, x, over, false);
  }
};
/// Returns whether all elements are true; true without elements.
struct All {
  static constexpr OpInfo info{"all", CastClass::as_is, cast_reason::truth};
  ReduceDims over;
  Tensor forward(const Tensor& x) {
    return detail::reduce_bools("all", Reduction::min, x, over, true);
  }
};

inline Tensor any(const Tensor& x, const Dims& dims = {}, bool keep = false) {
  return apply(Any{.over = {dims, keep}}, x);
}
inline Tensor all(const Tensor& x, const Dims& dims = {}, bool keep = false) {
  return apply(All{.over = {dims, keep}}, x);
}

namespace detail {
template <class F> Tensor logical(F formula, const Tensor& a, const Tensor& b) {
  check::defined(F::info.name, "an input", a);
  check::defined(F::info.name, "an input", b);
  return apply(Compare<F>{formula}, a, b);
}
}  // namespace detail
/// logical_and(), logical_or() and logical_xor(): inputs broadcast, and their dtypes may differ.
inline Tensor logical_and(const Tensor& a, const Tensor& b) {
  return detail::logical(formula::LogicalAnd{}, a, b);
}
inline Tensor logical_or(const Tensor& a, const Tensor& b) {
  return detail::logical(formula::LogicalOr{}, a, b);
}
inline Tensor logical_xor(const Tensor& a, const Tensor& b) {
  return detail::logical(formula::LogicalXor{}, a, b);
}
inline Tensor logical_not(const Tensor& x) {
  check::numbers_or_bool("logical_not", x);
  return x == 0;
}

inline Tensor isnan(const Tensor& x) {
  check::numbers_or_bool("isnan", x);
  return not_equal(x, x);
}
/// Returns true for elements that are neither NaN nor infinite, so for all integers.
inline Tensor isfinite(const Tensor& x) {
  check::numbers_or_bool("isfinite", x);
  if (!is_floating(x.dtype())) return ones(x.shape(), boolean, x.device());
  return abs(x) < std::numeric_limits<double>::infinity();
}
inline Tensor isinf(const Tensor& x) {
  check::numbers_or_bool("isinf", x);
  if (!is_floating(x.dtype())) return zeros(x.shape(), boolean, x.device());
  return abs(x) == std::numeric_limits<double>::infinity();
}

// Division that rounds down. For integers a divisor of 0 is an error on the CPU. On a GPU, where
// the check would make the host wait, the result is 0.

namespace detail {
inline void refuse_zero_divisors(std::string_view op, const Tensor& a, const Tensor& b) {
  check::defined(op, "an input", a);
  check::defined(op, "an input", b);
  const bool seen = b.device().kind == DeviceKind::cpu && a.numel() > 0;
  if (seen && !is_floating(a.dtype()) && !is_floating(b.dtype()) && any(b == 0).item() != 0)
    fail<UsageError>(op, "a divisor is 0. Integers need another one; cast to f32 for infinities.");
}
}  // namespace detail

/// Returns floor(a / b). As torch.floor_divide, Python's //; the gradient is 0.
inline Tensor floor_divide(const Tensor& a, const Tensor& b) {
  detail::refuse_zero_divisors("floor_divide", a, b);
  return binary(formula::FloorDivide{}, a, b);
}
inline Tensor floor_divide(const Tensor& a, Number b) {
  return detail::with_number("floor_divide", a, b,
                             [](const Tensor& x, const Tensor& y) { return floor_divide(x, y); });
}
/// Returns a - b floor(a / b), with b's sign. As torch.remainder, Python's %.
inline Tensor remainder(const Tensor& a, const Tensor& b) {
  detail::refuse_zero_divisors("remainder", a, b);
  return binary(formula::Remainder{}, a, b);
}
inline Tensor remainder(const Tensor& a, Number b) {
  return detail::with_number("remainder", a, b,
                             [](const Tensor& x, const Tensor& y) { return remainder(x, y); });
}
/// Returns a - b trunc(a / b), with a's sign. As torch.fmod, C's %.
inline Tensor fmod(const Tensor& a, const Tensor& b) {
  detail::refuse_zero_divisors("fmod", a, b);
  return binary(formula::Fmod{}, a, b);
}
inline Tensor fmod(const Tensor& a, Number b) {
  return detail::with_number("fmod", a, b,
                             [](const Tensor& x, const Tensor& y) { return fmod(x, y); });
}
inline Tensor operator%(const Tensor& a, const Tensor& b) { return remainder(a, b); }
inline Tensor operator%(const Tensor& a, Number b) { return remainder(a, b); }

// The same operations in the forms that PyTorch users write: with a dtype, one dimension as a
// number, sizes one by one.

// With a dtype, x is cast to it before the reduction, and the result has it. As PyTorch's dtype=.
inline Tensor sum(const Tensor& x, const Dims& dims, bool keep, DType dtype) {
  return cast(sum(cast(x, dtype), dims, keep), dtype);
}
inline Tensor sum(const Tensor& x, DType dtype) { return sum(x, {}, false, dtype); }
inline Tensor mean(const Tensor& x, const Dims& dims, bool keep, DType dtype) {
  return cast(mean(cast(x, dtype), dims, keep), dtype);
}
inline Tensor mean(const Tensor& x, DType dtype) { return mean(x, {}, false, dtype); }
inline Tensor prod(const Tensor& x, const Dims& dims, bool keep, DType dtype) {
  return cast(prod(cast(x, dtype), dims, keep), dtype);
}
inline Tensor prod(const Tensor& x, DType dtype) { return prod(x, {}, false, dtype); }
inline Tensor cumsum(const Tensor& x, int dim, DType dtype) {
  return cast(cumsum(cast(x, dtype), dim), dtype);
}
inline Tensor cumprod(const Tensor& x, int dim, DType dtype) {
  return cast(cumprod(cast(x, dtype), dim), dtype);
}
inline Tensor softmax(const Tensor& x, int dim, DType dtype) {
  return cast(softmax(cast(x, dtype), dim), dtype);
}
inline Tensor log_softmax(const Tensor& x, int dim, DType dtype) {
  return cast(log_softmax(cast(x, dtype), dim), dtype);
}

// Reductions that are made of other operations. They take dimensions as sum() does.

/// Returns the sum of the elements that are not NaN; integers and bools as sum(). As torch.nansum.
Tensor nansum(const Tensor& x, const Dims& dims = {}, bool keep = false);
/// Returns the mean of the elements that are not NaN; NaN if there are none. As torch.nanmean.
Tensor nanmean(const Tensor& x, const Dims& dims = {}, bool keep = false);
/// Returns i64, the number of elements that are not 0. As torch.count_nonzero, which cannot keep.
Tensor count_nonzero(const Tensor& x, const Dims& dims = {}, bool keep = false);
/// Return var() or std(), and mean(). As torch.var_mean and torch.std_mean.
std::pair<Tensor, Tensor> var_mean(const Tensor& x, const Dims& dims = {}, double correction = 1,
                                   bool keep = false);
std::pair<Tensor, Tensor> std_mean(const Tensor& x, const Dims& dims = {}, double correction = 1,
                                   bool keep = false);
/// Returns log(cumsum(exp(x))) along a dimension, computed in f32 or wider. As torch.logcumsumexp.
Tensor logcumsumexp(const Tensor& x, int dim);

struct Closeness {
  double rtol = 1e-5, atol = 1e-8;
  bool equal_nan = false;
};
/// Returns |a - b| <= atol + rtol |b|, as bools; an infinity is close to itself alone. a and b
/// broadcast and must have one dtype. As torch.isclose.
Tensor isclose(const Tensor& a, const Tensor& b, const Closeness& options = {});
/// Returns whether isclose() is true everywhere, which waits for the device. As torch.allclose.
bool allclose(const Tensor& a, const Tensor& b, const Closeness& options = {});

/// A whole number that is not a bool: in sum(x, true) the dimension would be unclear.
template <class T>
concept WholeNumber = std::integral<T> && !std::same_as<T, bool>;

template <WholeNumber T> Tensor sum(const Tensor& x, T dim, bool keep = false) {
  return sum(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor sum(const Tensor& x, T dim, bool keep, DType dtype) {
  return sum(x, Dims{int64_t(dim)}, keep, dtype);
}
template <WholeNumber T> Tensor mean(const Tensor& x, T dim, bool keep = false) {
  return mean(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor mean(const Tensor& x, T dim, bool keep, DType dtype) {
  return mean(x, Dims{int64_t(dim)}, keep, dtype);
}
template <WholeNumber T>
Tensor var(const Tensor& x, T dim, double correction = 1, bool keep = false) {
  return var(x, Dims{int64_t(dim)}, correction, keep);
}
template <WholeNumber T>
Tensor std(const Tensor& x, T dim, double correction = 1, bool keep = false) {
  return std(x, Dims{int64_t(dim)}, correction, keep);
}
template <WholeNumber T> Tensor max(const Tensor& x, T dim, bool keep = false) {
  return max(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor min(const Tensor& x, T dim, bool keep = false) {
  return min(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor prod(const Tensor& x, T dim, bool keep = false) {
  return prod(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor prod(const Tensor& x, T dim, bool keep, DType dtype) {
  return prod(x, Dims{int64_t(dim)}, keep, dtype);
}
template <WholeNumber T> Tensor norm(const Tensor& x, T dim, bool keep = false) {
  return norm(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor any(const Tensor& x, T dim, bool keep = false) {
  return any(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor all(const Tensor& x, T dim, bool keep = false) {
  return all(x, Dims{int64_t(dim)}, keep);
}

template <WholeNumber T> Tensor nansum(const Tensor& x, T dim, bool keep = false) {
  return nansum(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor nanmean(const Tensor& x, T dim, bool keep = false) {
  return nanmean(x, Dims{int64_t(dim)}, keep);
}
template <WholeNumber T> Tensor count_nonzero(const Tensor& x, T dim, bool keep = false) {
  return count_nonzero(x, Dims{int64_t(dim)}, keep);
}

/// Take sizes or dimensions one by one: reshape(x, 2, -1), permute(x, 1, 0), expand(x, 4, -1).
template <WholeNumber... T>
requires(sizeof...(T) > 0) Tensor reshape(const Tensor& x, T... sizes) {
  return reshape(x, Shape{int64_t(sizes)...});
}
template <WholeNumber... T>
requires(sizeof...(T) > 0) Tensor permute(const Tensor& x, T... dims) {
  return permute(x, Dims{int64_t(dims)...});
}
template <WholeNumber... T>
requires(sizeof...(T) > 0) Tensor expand(const Tensor& x, T... sizes) {
  return expand(x, Shape{int64_t(sizes)...});
}

// Elementwise functions composed of others: lerp, glu, nan_to_num.

/// Returns a + weight (b - a), computed from the nearer end, as torch.lerp; short floats are mixed
/// in f32 and rounded once.
Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight);
Tensor lerp(const Tensor& a, const Tensor& b, double weight);
/// Returns a dimension's first half times the sigmoid of the second. As torch.nn.functional.glu.
Tensor glu(const Tensor& x, int dim = -1);
/// Replaces NaN and the infinities. An absent posinf is the largest number of x's dtype, an absent
/// neginf the lowest. Replaced elements have no gradient. As torch.nan_to_num.
Tensor nan_to_num(const Tensor& x, double nan = 0, std::optional<double> posinf = {},
                  std::optional<double> neginf = {});

}  // namespace halftone
