// Checks of the inputs of operations, with their error messages.
#pragma once

#include <halftone/core/tensor.h>

namespace halftone::check {

inline void defined(std::string_view op, std::string_view what, const Tensor& x) {
  if (!x.defined()) fail<UsageError>(op, what, " is undefined. Pass a tensor.");
}

inline void floating(std::string_view op, const Tensor& x) {
  defined(op, "an input", x);
  if (!is_floating(x.dtype()) || size_of(x.dtype()) == 1)
    fail<DTypeError>(op, "needs f64, f32, f16 or bf16, got ", described(x), ". Cast it first.");
}

inline void same_dtype(std::string_view op, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype())
    fail<DTypeError>(op, "dtypes differ: ", described(a), " and ", described(b),
                     ". Cast one of them, or run under autocast.");
}

inline void rank(std::string_view op, std::string_view what, const Tensor& x, int wanted) {
  defined(op, what, x);
  if (x.rank() != wanted)
    fail<ShapeError>(op, what, " is ", described(x), ", of rank ", x.rank(), ". It must have rank ",
                     wanted, ".");
}

/// Checks an input of operations that also compute with integers.
inline void numbers(std::string_view op, const Tensor& x) {
  defined(op, "an input", x);
  if (x.dtype() == boolean || (is_floating(x.dtype()) && size_of(x.dtype()) == 1))
    fail<DTypeError>(op, "needs integers, f64, f32, f16 or bf16, got ", described(x),
                     ". Cast it first.");
}
/// The same, and allows bool.
inline void numbers_or_bool(std::string_view op, const Tensor& x) {
  defined(op, "an input", x);
  if (x.dtype() != boolean) numbers(op, x);
}

/// Checks indices and targets; kernels take them as i64: see index.h.
inline void integers(std::string_view op, std::string_view what, const Tensor& x) {
  defined(op, what, x);
  if (x.dtype() != i64 && x.dtype() != i32)
    fail<DTypeError>(op, what, " must be i64 or i32, got ", described(x), ". Cast it first.");
}

/// Checks that a tensor is on the input's device, for tensors not passed through `apply`, which
/// checks devices.
inline void on_device_of(std::string_view op, const Tensor& input, std::string_view what,
                         const Tensor& x) {
  if (x.defined() && x.device() != input.device())
    fail<DeviceError>(op, "the input is on ", input.device(), ", ", what, " on ", x.device(),
                      ". Move them to one device with to().");
}

/// Checks a per-channel vector (weight, bias, running statistics): undefined, or floating [size].
inline void vector_of(std::string_view op, std::string_view what, const Tensor& x, int64_t size) {
  if (!x.defined()) return;
  floating(op, x);
  if (x.rank() != 1 || x.shape()[0] != size)
    fail<ShapeError>(op, what, " is ", described(x), " for ", size, " channels. It must be [", size,
                     "].");
}

}  // namespace halftone::check
