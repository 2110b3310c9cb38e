// Shapes and strides: short lists of 64-bit integers stored inside the object (at most 8
// dimensions), so that a new view costs no allocation. Strides count elements, not bytes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string_view>

namespace halftone {

/// Up to max_rank integers by value: a shape, strides, or a list of dimensions.
class Dims {
 public:
  static constexpr int max_rank = 8;

  Dims() = default;
  Dims(std::initializer_list<int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  explicit Dims(std::span<const int64_t> values);
  static Dims filled(int rank, int64_t value);

  int rank() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  /// Counts from the end if negative; throws ShapeError for an index out of range.
  int64_t& operator[](int i) { return values_[place_of(i)]; }
  int64_t operator[](int i) const { return values_[place_of(i)]; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + rank_; }
  int64_t* begin() { return values_.data(); }
  int64_t* end() { return values_.data() + rank_; }
  void push_back(int64_t value);
  void insert(int at, int64_t value);
  void erase(int at);
  bool operator==(const Dims& other) const;

 private:
  [[noreturn, gnu::cold]] void fail_index(int i) const;
  std::size_t place_of(int i) const {
    const int place = i < 0 ? i + rank_ : i;
    if (unsigned(place) >= unsigned(rank_)) fail_index(i);
    return std::size_t(place);
  }

  std::array<int64_t, max_rank> values_{};
  int rank_ = 0;
};

using Shape = Dims;
using Strides = Dims;

std::ostream& operator<<(std::ostream& out, const Dims& dims);

/// Returns the number of elements; throws ShapeError for a negative size or an overflow.
int64_t numel_of(const Shape& shape);
/// Returns the product of all sizes but the last: the number of rows, also if they are empty.
int64_t rows_of(const Shape& shape);
/// Returns row-major strides.
Strides contiguous_strides(const Shape& shape);
/// Returns NHWC strides under a logical NCHW shape (rank 4).
Strides channels_last_strides(const Shape& shape);
/// Returns strides of the same dimension order for another shape: those of an elementwise result of
/// a dense permuted input. Row-major if the input is not dense.
Strides strides_in_order_of(const Shape& shape, const Strides& strides);
/// Returns true if the elements fill one block without holes or overlaps, in any dimension order.
bool is_dense(const Shape& shape, const Strides& strides);
/// Returns the shape two shapes broadcast to, by NumPy's rules; throws ShapeError naming `op`.
Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b);
/// Returns a dimension, counted from the end if negative, checked against the rank; throws
/// ShapeError naming `op`.
int normalize_dim(std::string_view op, int64_t dim, int rank);

}  // namespace halftone
