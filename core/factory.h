// Making tensors. None of these is recorded; call set_requires_grad() on the result for a leaf.
#pragma once

#include <initializer_list>
#include <span>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone {

/// Uninitialised, row-major.
Tensor empty(const Shape& shape, DType dtype = f32, Device device = {});
/// Uninitialised, with given dense strides.
Tensor empty_strided(const Shape& shape, const Strides& strides, DType dtype, Device device);
/// Uninitialised, shape and device of x, and its dimension order if x is dense.
Tensor empty_like(const Tensor& x);
Tensor empty_like(const Tensor& x, DType dtype);
/// Uninitialised NHWC memory under a logical NCHW shape.
Tensor empty_channels_last(const Shape& shape, DType dtype, Device device);

Tensor full(const Shape& shape, double value, DType dtype = f32, Device device = {});
Tensor zeros(const Shape& shape, DType dtype = f32, Device device = {});
Tensor ones(const Shape& shape, DType dtype = f32, Device device = {});
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
Tensor scalar(double value, DType dtype = f32, Device device = {});
/// start, start + step, ... up to but without end.
Tensor arange(double start, double end, double step = 1, DType dtype = f32, Device device = {});
Tensor arange(int64_t end, DType dtype = i64, Device device = {});

/// Values from the host in row-major order, converted to dtype. Their number must fit the shape.
template <class T>
Tensor from_span(std::span<const T> values, const Shape& shape, DType dtype = f32,
                 Device device = {});
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape, DType dtype = f32,
                   Device device = {}) {
  return from_span<T>(std::span<const T>(values), shape, dtype, device);
}
/// A vector: from({1, 2, 3}).
Tensor from(std::initializer_list<double> values, DType dtype = f32, Device device = {});
/// A matrix: from({{1, 2}, {3, 4}}).
Tensor from(std::initializer_list<std::initializer_list<double>> rows, DType dtype = f32,
            Device device = {});

/// Uniform on [0, 1), normal(0, 1), integers on [low, high), from the default generator.
Tensor rand(const Shape& shape, DType dtype = f32, Device device = {});
Tensor randn(const Shape& shape, DType dtype = f32, Device device = {});
Tensor randint(int64_t low, int64_t high, const Shape& shape, DType dtype = i64,
               Device device = {});

}  // namespace halftone
