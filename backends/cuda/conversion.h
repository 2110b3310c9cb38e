// Handles rare mixtures of dtypes with copies: the kernels of rows and columns are compiled for the
// mixtures that occur in training; other allowed mixtures go through tensors of a wider dtype.
#pragma once

#include <halftone/backends/cuda/context.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>

namespace halftone::cuda {

/// Returns the dtype of statistics: f64 if a tensor is f64, otherwise f32.
template <class... T> DType statistics_of(const T&... tensors) {
  return ((tensors.defined() && tensors.dtype() == f64) || ...) ? f64 : f32;
}
inline bool is_or_undefined(const Tensor& x, DType dtype) {
  return !x.defined() || x.dtype() == dtype;
}

/// Returns x if it has that dtype or is undefined, otherwise a copy.
inline Tensor converted(Backend& backend, const Tensor& x, DType dtype) {
  if (is_or_undefined(x, dtype)) return x;
  const MemoryScope scope(MemoryUse::workspace);
  Tensor copy = empty_like(x, dtype);
  backend.copy(x, copy);
  return copy;
}

/// A result that is computed in another dtype: finish() converts it into its destination.
class ConvertedResult {
 public:
  ConvertedResult(Backend& backend, Tensor& wanted, DType dtype)
      : backend_(backend), wanted_(wanted), tensor_(wanted) {
    if (is_or_undefined(wanted, dtype)) return;
    const MemoryScope scope(MemoryUse::workspace);
    tensor_ = empty_like(wanted, dtype);
  }
  Tensor& tensor() { return tensor_; }
  void finish() {
    if (tensor_.defined() && tensor_.dtype() != wanted_.dtype()) backend_.copy(tensor_, wanted_);
  }

 private:
  Backend& backend_;
  Tensor& wanted_;
  Tensor tensor_;
};

/// Calls visitor.operator()<T, U>() if u is t, or if t is a short float and u is f32. Returns
/// whether it did.
template <class Visitor> bool visit_with_wide(DType t, DType u, Visitor&& visitor) {
  if (!is_floating(t) || size_of(t) == 1) return false;
  bool done = false;
  visit_floating(t, "cuda", [&]<class T>() {
    if (u == t) visitor.template operator()<T, T>(), done = true;
    else if constexpr (sizeof(T) == 2)
      if (u == f32) visitor.template operator()<T, float>(), done = true;
  });
  return done;
}

}  // namespace halftone::cuda
