// Tests whose result is bool. Everything but 0 is true, also NaN.
#pragma once

#include <limits>

#include <halftone/autograd/ops/reduce.h>

namespace halftone {

namespace detail {
inline Tensor as_bool(std::string_view op, const Tensor& x) {
  check::numbers_or_bool(op, x);
  return cast(x, boolean);
}
/// Returns max or min of bools; `of_none` without elements.
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
/// Inputs broadcast; their dtypes may differ.
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

}  // namespace halftone
