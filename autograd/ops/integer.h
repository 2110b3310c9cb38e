// Division that rounds down. For integers a divisor of 0 is an error on the CPU. On a GPU, where
// the check would make the host wait, the result is 0.
#pragma once

#include <halftone/autograd/ops/logical.h>

namespace halftone {

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
inline Tensor operator%(const Tensor& a, const Tensor& b) { return remainder(a, b); }
inline Tensor operator%(const Tensor& a, Number b) { return remainder(a, b); }

}  // namespace halftone
