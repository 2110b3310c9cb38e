// Factories of tensors. None is recorded; call set_requires_grad() on the result for a leaf.
#pragma once

#include <concepts>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone {

/// Returns an uninitialized, row-major tensor.
Tensor empty(const Shape& shape, DType dtype = f32, Device device = {});
/// Returns an uninitialized tensor with given dense strides.
Tensor empty_strided(const Shape& shape, const Strides& strides, DType dtype, Device device);
/// Returns an uninitialized tensor of x's shape and device, in its dimension order if x is dense.
Tensor empty_like(const Tensor& x);
Tensor empty_like(const Tensor& x, DType dtype);
/// Returns an uninitialized tensor with NHWC memory under a logical NCHW shape.
Tensor empty_channels_last(const Shape& shape, DType dtype, Device device);

Tensor full(const Shape& shape, Number value, DType dtype = f32, Device device = {});
Tensor zeros(const Shape& shape, DType dtype = f32, Device device = {});
Tensor ones(const Shape& shape, DType dtype = f32, Device device = {});
Tensor zeros_like(const Tensor& x);
Tensor ones_like(const Tensor& x);
Tensor scalar(Number value, DType dtype = f32, Device device = {});

namespace detail {
Tensor arange(Number start, Number end, Number step, DType dtype, Device device);

template <class T>
concept Arithmetic = std::is_arithmetic_v<T>;
/// The dtype of arange(): i64 if all arguments are of integer types, else f32, as in PyTorch.
template <Arithmetic... T>
inline constexpr DType range_dtype = (std::integral<T> && ...) ? i64 : f32;
}  // namespace detail
/// Returns start, start + step, ... up to but without end. Whole numbers give i64, others f32, as
/// torch.arange.
template <detail::Arithmetic End>
Tensor arange(End end, DType dtype = detail::range_dtype<End>, Device device = {}) {
  return detail::arange(0, end, 1, dtype, device);
}
template <detail::Arithmetic Start, detail::Arithmetic End>
Tensor arange(Start start, End end, DType dtype = detail::range_dtype<Start, End>,
              Device device = {}) {
  return detail::arange(start, end, 1, dtype, device);
}
template <detail::Arithmetic Start, detail::Arithmetic End, detail::Arithmetic Step>
Tensor arange(Start start, End end, Step step, DType dtype = detail::range_dtype<Start, End, Step>,
              Device device = {}) {
  return detail::arange(start, end, step, dtype, device);
}

/// Returns `steps` numbers from start through end, at equal distances. As torch.linspace.
Tensor linspace(double start, double end, int64_t steps, DType dtype = f32, Device device = {});
/// Returns a matrix [rows, columns] with 1 on the main diagonal, 0 elsewhere; columns -1: as many
/// as rows. As torch.eye.
Tensor eye(int64_t rows, int64_t columns = -1, DType dtype = f32, Device device = {});

namespace detail {
/// The dtype of a tensor made from host values of type T: boolean for bool, u8 for uint8_t, i64 for
/// other integers, f32 for floating point, as in PyTorch.
template <class T>
inline constexpr DType value_dtype = std::same_as<T, bool>      ? boolean
                                     : std::same_as<T, uint8_t> ? u8
                                     : std::integral<T>         ? i64
                                                                : f32;
/// Throws ShapeError if two rows of a matrix differ in length.
void require_same_columns(std::size_t columns, std::size_t in_this_row);
/// The types that from_span() is compiled for.
template <class T>
concept HostValue = std::same_as<T, double> || std::same_as<T, float> || std::same_as<T, int64_t> ||
    std::same_as<T, int32_t> || std::same_as<T, uint8_t> || std::same_as<T, bool>;
/// Converts whole numbers of other types, std::size_t and the like, to int64_t.
template <std::integral T> std::vector<int64_t> as_int64(std::span<const T> values) {
  std::vector<int64_t> result;
  result.reserve(values.size());
  for (const T value : values) {
    if (!std::in_range<int64_t>(value))
      fail<UsageError>("from_vector", "the value ", value, " at position ", result.size(),
                       " is larger than an i64 can be. Use smaller ones.");
    result.push_back(int64_t(value));
  }
  return result;
}
}  // namespace detail

/// Returns a tensor of values from the host in row-major order, converted to dtype. Throws
/// ShapeError unless there are as many values as elements. Compiled for the types of HostValue.
template <class T>
Tensor from_span(std::span<const T> values, const Shape& shape,
                 DType dtype = detail::value_dtype<T>, Device device = {});

namespace detail {
template <class T>
Tensor from_host(std::span<const T> values, const Shape& shape, DType dtype, Device device) {
  static_assert(HostValue<T> || std::integral<T>,
                "from_vector takes double, float, bool or whole numbers");
  if constexpr (HostValue<T>) return from_span<T>(values, shape, dtype, device);
  else return from_span<int64_t>(as_int64(values), shape, dtype, device);
}
}  // namespace detail
/// Returns a tensor of these values, as from_span(). Integers of any type give i64 (uint8_t: u8),
/// other numbers f32, unless a dtype is given.
template <class T>
Tensor from_vector(const std::vector<T>& values, const Shape& shape,
                   DType dtype = detail::value_dtype<T>, Device device = {}) {
  static_assert(!std::same_as<T, bool>,
                "std::vector<bool> is not an array: use std::vector<uint8_t>, or braces");
  return detail::from_host(std::span<const T>(values), shape, dtype, device);
}
/// Returns the same from values in braces: from_vector({1.f, 2.f}, {2}).
template <class T>
Tensor from_vector(std::initializer_list<T> values, const Shape& shape,
                   DType dtype = detail::value_dtype<T>, Device device = {}) {
  return detail::from_host(std::span<const T>(values.begin(), values.size()), shape, dtype, device);
}
/// Returns a vector: from({1.5, 2, 3}) is f32.
Tensor from(std::initializer_list<double> values, DType dtype = f32, Device device = {});
/// Returns a matrix: from({{1.5, 2}, {3, 4}}) is f32.
Tensor from(std::initializer_list<std::initializer_list<double>> rows, DType dtype = f32,
            Device device = {});
/// Returns a vector of integers, i64 unless a dtype is given (uint8_t: u8): from({0, 2, 1}).
template <std::integral T>
Tensor from(std::initializer_list<T> values, DType dtype = detail::value_dtype<T>,
            Device device = {}) {
  return from_vector(values, {int64_t(values.size())}, dtype, device);
}
/// Returns a matrix of integers, of the same dtype: from({{1, 2}, {3, 4}}).
template <std::integral T>
Tensor from(std::initializer_list<std::initializer_list<T>> rows,
            DType dtype = detail::value_dtype<T>, Device device = {}) {
  std::vector<int64_t> values;
  const std::size_t columns = rows.size() == 0 ? 0 : rows.begin()->size();
  for (const auto& row : rows) {
    detail::require_same_columns(columns, row.size());
    for (const T value : row) values.push_back(int64_t(value));
  }
  return from_vector(values, {int64_t(rows.size()), int64_t(columns)}, dtype, device);
}

/// Return random numbers of the default generator: uniform in [0, 1), normal with mean 0 and
/// standard deviation 1, and uniform integers in [low, high).
Tensor rand(const Shape& shape, DType dtype = f32, Device device = {});
Tensor randn(const Shape& shape, DType dtype = f32, Device device = {});
Tensor randint(int64_t low, int64_t high, const Shape& shape, DType dtype = i64,
               Device device = {});
/// As torch.normal with numbers; throws UsageError for a negative std.
Tensor normal(double mean, double std, const Shape& shape, DType dtype = f32, Device device = {});
/// Returns 0, 1, ..., n - 1 in random order, drawn by the host. As torch.randperm.
Tensor randperm(int64_t n, DType dtype = i64, Device device = {});

namespace detail {
/// The shape of sizes that were passed one by one.
template <class... S> Shape shape_of(S... sizes) {
  static_assert((std::integral<S> && ...),
                "sizes are whole numbers; next to a dtype or device put them in braces, as in "
                "zeros({2, 3}, bf16)");
  static_assert(sizeof...(S) <= Dims::max_rank, "a tensor has at most 8 dimensions");
  if constexpr ((std::integral<S> && ...)) return Shape{int64_t(sizes)...};
  else return {};
}
}  // namespace detail
/// empty, zeros, ones, rand and randn with sizes passed one by one; f32, on the CPU: randn(2, 3).
template <std::integral First, class... S> Tensor empty(First first, S... rest) {
  return empty(detail::shape_of(first, rest...));
}
template <std::integral First, class... S> Tensor zeros(First first, S... rest) {
  return zeros(detail::shape_of(first, rest...));
}
template <std::integral First, class... S> Tensor ones(First first, S... rest) {
  return ones(detail::shape_of(first, rest...));
}
template <std::integral First, class... S> Tensor rand(First first, S... rest) {
  return rand(detail::shape_of(first, rest...));
}
template <std::integral First, class... S> Tensor randn(First first, S... rest) {
  return randn(detail::shape_of(first, rest...));
}

}  // namespace halftone
