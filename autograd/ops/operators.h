// The operators of C++ on tensors, and numbers next to tensors in functions of two inputs.
#pragma once

#include <cmath>
#include <limits>
#include <optional>

#include <halftone/autograd/ops/elementwise.h>
#include <halftone/core/tensor.h>

namespace halftone {

namespace detail {
/// Returns the dtype that x and a number promote to.
inline DType dtype_for(const Tensor& x, Number number) {
  if (is_floating(x.dtype())) return x.dtype();
  if (!number.whole) return f32;
  const bool fits = x.dtype() != boolean && std::abs(number.value) <= facts(x.dtype()).max &&
                    (number.value >= 0 || x.dtype() != u8);
  return fits ? x.dtype() : i64;
}
/// Returns the number as a tensor for use with x: the elements of x are not copied.
inline Tensor scalar_like(std::string_view op, const Tensor& x, Number number) {
  check::defined(op, "an input", x);
  return scalar(number, dtype_for(x, number), x.device());
}
/// Returns a function of x and a number that is not rounded to x's dtype first: a short float is
/// computed in f32, and the result rounded once.
template <class F> Tensor with_number(std::string_view op, const Tensor& x, Number number, F f) {
  check::defined(op, "an input", x);
  const bool shorter = is_floating(x.dtype()) && size_of(x.dtype()) < size_of(f32);
  const Tensor wide = shorter ? cast(x, f32) : x;
  const Tensor y = f(wide, scalar_like(op, wide, number));
  return shorter ? cast(y, x.dtype()) : y;
}
/// Returns scale * x + shift in the dtype that x and both numbers promote to.
inline Tensor scaled_and_shifted(const Tensor& x, Number scale, Number shift) {
  check::defined("affine", "an input", x);
  if (is_floating(x.dtype())) return affine(x, scale.value, shift.value);
  const DType wide = scale.whole && shift.whole ? (x.dtype() == boolean ? i64 : x.dtype()) : f32;
  if (is_floating(wide) || (scale.in_double() && shift.in_double()))
    return affine(cast(x, wide), scale.value, shift.value);
  const auto exact = [&](Number number) { return scalar(number, wide, x.device()); };
  return add(mul(cast(x, wide), exact(scale)), exact(shift));
}
}  // namespace detail

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, Number b) { return detail::scaled_and_shifted(a, 1, b); }
inline Tensor operator-(const Tensor& a, Number b) { return detail::scaled_and_shifted(a, 1, -b); }
inline Tensor operator*(const Tensor& a, Number b) { return detail::scaled_and_shifted(a, b, 0); }
inline Tensor operator/(const Tensor& a, Number b) {
  check::defined("affine", "an input", a);
  if (is_floating(a.dtype())) {
    const double inverse = 1 / b.value, largest = facts(a.dtype() == f64 ? f64 : f32).max;
    if (b.value == 0 || !(std::abs(inverse) > largest)) return affine(a, inverse, 0);
    return detail::with_number("div", a, b,
                               [](const Tensor& x, const Tensor& y) { return div(x, y); });
  }
  return div(cast(a, f32), scalar(b.value, f32, a.device()));
}
inline Tensor operator+(Number a, const Tensor& b) { return b + a; }
inline Tensor operator-(Number a, const Tensor& b) { return detail::scaled_and_shifted(b, -1, a); }
inline Tensor operator*(Number a, const Tensor& b) { return b * a; }
inline Tensor operator/(Number a, const Tensor& b) {
  check::defined("reciprocal", "an input", b);
  return reciprocal(is_floating(b.dtype()) ? b : cast(b, f32)) * a.value;
}
inline Tensor operator-(const Tensor& x) { return neg(x); }

inline Tensor operator==(const Tensor& a, const Tensor& b) { return equal(a, b); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return not_equal(a, b); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return less(a, b); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return less_equal(a, b); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return greater(a, b); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return greater_equal(a, b); }
// The number is rounded to the tensor's dtype first, as in PyTorch.
inline Tensor operator==(const Tensor& a, Number b) {
  return equal(a, detail::scalar_like("equal", a, b));
}
inline Tensor operator!=(const Tensor& a, Number b) {
  return not_equal(a, detail::scalar_like("not_equal", a, b));
}
inline Tensor operator<(const Tensor& a, Number b) {
  return less(a, detail::scalar_like("less", a, b));
}
inline Tensor operator<=(const Tensor& a, Number b) {
  return less_equal(a, detail::scalar_like("less_equal", a, b));
}
inline Tensor operator>(const Tensor& a, Number b) {
  return greater(a, detail::scalar_like("greater", a, b));
}
inline Tensor operator>=(const Tensor& a, Number b) {
  return greater_equal(a, detail::scalar_like("greater_equal", a, b));
}
inline Tensor operator==(Number a, const Tensor& b) { return b == a; }
inline Tensor operator!=(Number a, const Tensor& b) { return b != a; }
inline Tensor operator<(Number a, const Tensor& b) { return b > a; }
inline Tensor operator<=(Number a, const Tensor& b) { return b >= a; }
inline Tensor operator>(Number a, const Tensor& b) { return b < a; }
inline Tensor operator>=(Number a, const Tensor& b) { return b <= a; }

inline Tensor maximum(const Tensor& a, Number b) {
  return maximum(a, detail::scalar_like("maximum", a, b));
}
inline Tensor maximum(Number a, const Tensor& b) { return maximum(b, a); }
inline Tensor minimum(const Tensor& a, Number b) {
  return minimum(a, detail::scalar_like("minimum", a, b));
}
inline Tensor minimum(Number a, const Tensor& b) { return minimum(b, a); }
/// Return x ^ exponent and base ^ x. As torch.pow: integers with a whole number are raised as
/// integers, with any other number as f32.
inline Tensor pow(const Tensor& x, Number exponent) {
  check::defined("pow", "an input", x);
  const bool whole = !is_floating(x.dtype()) && exponent.whole;
  if (whole && exponent.value < 0)
    fail<UsageError>("pow", "the exponent of integers is ", exponent.value,
                     ". It must be 0 or more. Cast to f32 for fractions.");
  if (whole && !exponent.in_double()) return pow(x, detail::scalar_like("pow", x, exponent));
  return unary(formula::PowScalar{exponent.value},
               cast(x, detail::dtype_for(x, exponent.whole ? Number(0) : exponent)));
}
inline Tensor pow(Number base, const Tensor& x) {
  return detail::with_number("pow", x, base, [&](const Tensor& exponent, const Tensor& b) {
    return pow(b, is_floating(x.dtype()) || base.whole ? exponent : cast(exponent, f32));
  });
}
/// Limits x to [low, high]; one of the two may be absent: clamp(x, 0), clamp(x, {}, 1). As
/// torch.clamp with numbers; integers with a fraction become f32.
inline Tensor clamp(const Tensor& x, std::optional<Number> low, std::optional<Number> high = {}) {
  check::defined("clamp", "an input", x);
  if (!low && !high) fail<UsageError>("clamp", "got neither bound. Pass low, high, or both.");
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double from = low ? low->value : -infinity, to = high ? high->value : infinity;
  if (!(from <= to))
    fail<UsageError>("clamp", "low is ", from, ", high is ", to, ". Use low <= high.");
  const bool whole = (!low || low->whole) && (!high || high->whole);
  if (x.dtype() == i64 && whole && !(low.value_or(0).in_double() && high.value_or(0).in_double())) {
    const Tensor raised = low ? maximum(x, *low) : x;
    return high ? minimum(raised, *high) : raised;
  }
  return unary(formula::Clamp{from, to},
               cast(x, detail::dtype_for(x, whole ? Number(0) : Number(0.5))));
}
/// The same with tensors that broadcast, one of which may be undefined; if low > high the result is
/// high. Ties share the gradient.
inline Tensor clamp(const Tensor& x, const Tensor& low, const Tensor& high = {}) {
  if (!low.defined() && !high.defined())
    fail<UsageError>("clamp", "got neither bound. Pass low, high, or both.");
  const Tensor raised = low.defined() ? maximum(x, low) : x;
  return high.defined() ? minimum(raised, high) : raised;
}
inline Tensor where(const Tensor& condition, const Tensor& a, Number b) {
  return where(condition, a, detail::scalar_like("where", a, b));
}
inline Tensor where(const Tensor& condition, Number a, const Tensor& b) {
  return where(condition, detail::scalar_like("where", b, a), b);
}

}  // namespace halftone
