// Runs of elements between tensors and the buffers that kernels compute in. All conversion of
// dtypes in this backend goes through convert_run(), so kernels are written once, for double (or
// int64_t), and work for every mix of dtypes.
#pragma once

#include <halftone/core/tensor.h>
#include <halftone/backends/reference/strided.h>

namespace halftone::reference {

/// Elements at equal distances in memory.
struct Run {
  std::byte* data;
  DType dtype;
  int64_t step;
};
inline Run run_of(const Tensor& x, int64_t offset, int64_t step = 1) {
  return {x.raw_data() + offset * size_of(x.dtype()), x.dtype(), step};
}
template <class T> Run run_of(T* values) {
  using Value = std::remove_const_t<T>;
  return {reinterpret_cast<std::byte*>(const_cast<Value*>(values)), dtype_of<Value>, 1};
}

/// Computes to[i] = convert<>(from[i]), with one rounding.
void convert_run(int64_t count, Run from, Run to);

/// Loads elements offset, offset + step, ... of x, converted to T. An undefined x is read as zeros.
template <class T>
void load(const Tensor& x, int64_t offset, int64_t step, int64_t count, T* values) {
  if (x.defined()) convert_run(count, run_of(x, offset, step), run_of(values));
  else std::fill_n(values, count, T(0));
}
template <class T>
void store(const T* values, int64_t count, const Tensor& y, int64_t offset, int64_t step) {
  convert_run(count, run_of(values), run_of(y, offset, step));
}

/// Loads neighboring elements.
template <class T> void load(const Tensor& x, int64_t offset, int64_t count, T* values) {
  load(x, offset, 1, count, values);
}
template <class T> void store(const T* values, int64_t count, const Tensor& y, int64_t offset) {
  store(values, count, y, offset, 1);
}
/// Loads one element.
inline double load_one(const Tensor& x, int64_t offset) {
  double value = 0;
  load(x, offset, 1, &value);
  return value;
}
inline void store_one(double value, const Tensor& y, int64_t offset) {
  store(&value, 1, y, offset);
}
/// Loads channel weights and similar tensors; if they are absent, fills `values` with `otherwise`.
inline void load_or(double otherwise, const Tensor& x, int64_t offset, int64_t count,
                    double* values) {
  if (x.defined()) load(x, offset, count, values);
  else std::fill_n(values, count, otherwise);
}

/// Converts long runs, in parallel.
void widen(const Tensor& x, int64_t offset, int64_t count, double* values);
void narrow(const double* values, int64_t count, const Tensor& y, int64_t offset);

}  // namespace halftone::reference
