// The operators of C++ on tensors, and numbers beside tensors in functions of two.
#pragma once

#include <cmath>
#include <concepts>

#include <halftone/autograd/ops/elementwise.h>

namespace halftone {

/// A number beside a tensor, which remembers whether it was written as a whole one: as in PyTorch,
/// 2 leaves a tensor of integers integers, and 2.0 makes it f32. Floating tensors keep their dtype.
struct Number {
  double value;
  bool whole;
  template <std::integral T> constexpr Number(T number) : value(double(number)), whole(true) {}
  template <std::floating_point T>
  constexpr Number(T number) : value(double(number)), whole(false) {}
};

namespace detail {
/// What x and a number promote to.
inline DType dtype_beside(const Tensor& x, Number number) {
  if (is_floating(x.dtype())) return x.dtype();
  if (!number.whole) return f32;
  const bool fits = x.dtype() != boolean && std::abs(number.value) <= facts(x.dtype()).max &&
                    (number.value >= 0 || x.dtype() != u8);
  return fits ? x.dtype() : i64;
}
/// The number as a tensor beside x: no element of x moves for it.
inline Tensor scalar_beside(std::string_view op, const Tensor& x, Number number) {
  check::defined(op, "an input", x);
  return scalar(number.value, dtype_beside(x, number), x.device());
}
/// scale * x + shift with the dtype that x has beside both.
inline Tensor scaled_and_shifted(const Tensor& x, Number scale, Number shift) {
  check::defined("affine", "an input", x);
  if (is_floating(x.dtype())) return affine(x, scale.value, shift.value);
  const DType wide = scale.whole && shift.whole ? (x.dtype() == boolean ? i64 : x.dtype()) : f32;
  return affine(cast(x, wide), scale.value, shift.value);
}
}  // namespace detail

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& a, Number b) { return detail::scaled_and_shifted(a, 1, b); }
inline Tensor operator-(const Tensor& a, Number b) {
  b.value = -b.value;
  return detail::scaled_and_shifted(a, 1, b);
}
inline Tensor operator*(const Tensor& a, Number b) { return detail::scaled_and_shifted(a, b, 0); }
inline Tensor operator/(const Tensor& a, Number b) {
  check::defined("affine", "an input", a);
  if (is_floating(a.dtype())) return affine(a, 1 / b.value, 0);
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
  return equal(a, detail::scalar_beside("equal", a, b));
}
inline Tensor operator!=(const Tensor& a, Number b) {
  return not_equal(a, detail::scalar_beside("not_equal", a, b));
}
inline Tensor operator<(const Tensor& a, Number b) {
  return less(a, detail::scalar_beside("less", a, b));
}
inline Tensor operator<=(const Tensor& a, Number b) {
  return less_equal(a, detail::scalar_beside("less_equal", a, b));
}
inline Tensor operator>(const Tensor& a, Number b) {
  return greater(a, detail::scalar_beside("greater", a, b));
}
inline Tensor operator>=(const Tensor& a, Number b) {
  return greater_equal(a, detail::scalar_beside("greater_equal", a, b));
}
inline Tensor operator==(Number a, const Tensor& b) { return b == a; }
inline Tensor operator!=(Number a, const Tensor& b) { return b != a; }
inline Tensor operator<(Number a, const Tensor& b) { return b > a; }
inline Tensor operator<=(Number a, const Tensor& b) { return b >= a; }
inline Tensor operator>(Number a, const Tensor& b) { return b < a; }
inline Tensor operator>=(Number a, const Tensor& b) { return b <= a; }

inline Tensor maximum(const Tensor& a, Number b) {
  return maximum(a, detail::scalar_beside("maximum", a, b));
}
inline Tensor maximum(Number a, const Tensor& b) { return maximum(b, a); }
inline Tensor minimum(const Tensor& a, Number b) {
  return minimum(a, detail::scalar_beside("minimum", a, b));
}
inline Tensor minimum(Number a, const Tensor& b) { return minimum(b, a); }
/// base ^ x. As torch.pow(2.0, x); integers are raised as f32.
inline Tensor pow(Number base, const Tensor& x) {
  check::defined("pow", "an input", x);
  const Tensor exponent = is_floating(x.dtype()) ? x : cast(x, f32);
  return pow(scalar(base.value, exponent.dtype(), x.device()), exponent);
}
inline Tensor where(const Tensor& condition, const Tensor& a, Number b) {
  return where(condition, a, detail::scalar_beside("where", a, b));
}
inline Tensor where(const Tensor& condition, Number a, const Tensor& b) {
  return where(condition, detail::scalar_beside("where", b, a), b);
}

}  // namespace halftone
