// Tensor, with its shape, strides and views; and the number next to a tensor.
#pragma once

#include <array>
#include <cassert>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/device.h>
#include <halftone/core/dtype.h>
#include <halftone/core/memory.h>

namespace halftone {

// A number next to a tensor, in functions and operators that take both.

/// A number that remembers whether it was written as a whole number. As in PyTorch, 2 keeps the
/// dtype of an integer tensor, and 2.0 makes it f32. Floating tensors keep their dtype. A whole
/// number is kept as an integer as well, because a double does not hold every one beyond 2^53.
struct Number {
  double value;
  int64_t integer;  // 0 unless whole
  bool whole;
  template <std::integral T>
  constexpr Number(T number) : value(double(number)), integer(int64_t(number)), whole(true) {
    if (!std::in_range<int64_t>(+number))
      fail<UsageError>("Number", "the value ", number,
                       " is larger than an i64 can be. Use a smaller one.");
  }
  template <std::floating_point T>
  constexpr Number(T number) : value(double(number)), integer(0), whole(false) {}

  /// Returns whether the double `value` holds the number exactly.
  constexpr bool in_double() const {
    constexpr int64_t most = int64_t(1) << 53;
    return !whole || (integer >= -most && integer <= most);
  }
  /// Returns the number as an element of a tensor.
  template <class T> constexpr T as() const {
    if constexpr (std::is_same_v<T, int64_t>)
      if (whole) return integer;
    return convert<T>(value);
  }
  /// Returns the negated number. The least int64_t stays as it is: integers wrap modulo 2^64.
  constexpr Number operator-() const {
    Number result = *this;
    result.value = -value, result.integer = int64_t(-uint64_t(integer));
    return result;
  }
};

// Shapes and strides: short lists of 64-bit integers stored inside the object (at most 8
// dimensions), so that a new view costs no allocation. Strides count elements, not bytes.

/// Up to max_rank integers by value: a shape, strides, or a list of dimensions.
class Dims {
 public:
  static constexpr int max_rank = 8;

  Dims() = default;
  Dims(std::initializer_list<int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  Dims(std::span<const int64_t> values);
  static Dims filled(int rank, int64_t value);

  int rank() const { return rank_; }
  bool empty() const { return rank_ == 0; }
  /// Returns element i. A negative i counts from the end. Throws ShapeError if i is out of range.
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
/// Returns dense strides for an elementwise result: they order the dimensions as `strides` do, or
/// row-major if a tensor of `shape` and `strides` is not dense.
Strides strides_in_order_of(const Shape& shape, const Strides& strides);
/// Returns true if the elements fill one block without holes or overlaps, in any dimension order.
bool is_dense(const Shape& shape, const Strides& strides);
/// Returns the shape to which a and b broadcast, as in NumPy. Throws ShapeError if they do not.
Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b);
/// Returns `dim` counted from the front, 0 to rank - 1; a negative `dim` counts from the end. A
/// scalar counts as rank 1. Throws ShapeError naming `op` for other dimensions.
int normalize_dim(std::string_view op, int64_t dim, int rank);

// Tensor is a handle of two pointers: its content (a TensorBody: storage, offset, shape, strides,
// dtype) and its history (autograd's record, opaque here). Copies are handles to the same data.
// Methods are metadata, data access and the autograd verbs; every operation is a free function
// (autograd/ops.h), and the most used ones are members as well.

struct AutogradMeta;  // defined in autograd/node.h

struct TensorBody {
  std::shared_ptr<Storage> storage;
  int64_t offset = 0;  // in elements
  Shape shape{};
  Strides strides{};
  DType dtype = f32;
};

class Tensor {
 public:
  Tensor() = default;  // undefined: holds nothing, represents an absent optional input
  explicit Tensor(std::shared_ptr<TensorBody> body, std::shared_ptr<AutogradMeta> meta = nullptr)
      : body_(std::move(body)), meta_(std::move(meta)) {}

  bool defined() const { return body_ != nullptr; }

  // --- metadata
  // All of it throws UsageError for an undefined tensor.
  const Shape& shape() const { return held("shape").shape; }
  const Strides& strides() const { return held("strides").strides; }
  int rank() const { return held("rank").shape.rank(); }
  /// Returns the size of dimension `dim` (negative: from the end). Throws ShapeError if it is
  /// absent.
  int64_t size(int64_t dim) const { return shape()[normalize_dim("size", dim, rank())]; }
  int64_t numel() const { return numel_of(shape()); }
  int64_t bytes() const { return numel() * size_of(dtype()); }
  DType dtype() const { return held("dtype").dtype; }
  Device device() const { return held("device").storage->device(); }
  int64_t offset() const { return held("offset").offset; }
  /// Returns whether the elements are row-major without holes.
  bool is_contiguous() const;
  /// Returns whether the tensor has rank 4 and is NHWC in memory under the logical NCHW shape.
  bool is_channels_last() const;
  bool is_dense() const { return halftone::is_dense(shape(), strides()); }

  // --- data
  const std::shared_ptr<Storage>& storage() const { return held("storage").storage; }
  std::byte* raw_data() const { return storage()->data() + offset() * size_of(dtype()); }
  /// Returns a pointer to the first element, on the tensor's device. T: the dtype's C++ type.
  template <class T> T* data() const {
    assert(dtype_of<std::remove_const_t<T>> == dtype());
    return reinterpret_cast<T*>(raw_data());
  }
  /// Returns all elements in row-major order, converted to T, on the host.
  template <class T> std::vector<T> to_vector() const;
  /// Returns the value of a tensor of one element. Throws ShapeError for any other tensor.
  double item() const;
  /// Returns the same as a T. item<int64_t>() is exact; a double does not hold every i64.
  template <class T> T item() const;
  /// Returns one element by its coordinates, on the host: for tests and printing, not for loops
  /// that matter.
  double at(std::initializer_list<int64_t> index) const;
  /// Returns another view of the same storage, from element `offset` of the storage. Throws
  /// ShapeError if the view leaves the storage.
  Tensor view_as(const Shape& shape, const Strides& strides, int64_t offset) const;
  /// Returns a copy on another device (the same handle if it is already there). Not recorded.
  Tensor to(Device device) const;
  /// Returns cast(x, dtype), a recorded operation. Defined in autograd/engine.cpp.
  Tensor to(DType dtype) const;
  /// Returns a dense copy of the data in the same dimension order. Not recorded.
  Tensor clone() const;

  // --- autograd (defined in autograd/engine.cpp)
  bool requires_grad() const;
  /// Makes backward compute a gradient for this leaf. Throws UsageError for tensors computed by
  /// operations, and DTypeError for dtypes other than f64, f32, f16 and bf16.
  Tensor& set_requires_grad(bool value = true);
  /// Returns true for tensors that no recorded operation made.
  bool is_leaf() const;
  /// Returns the accumulated gradient of a leaf, undefined before the first backward().
  Tensor grad() const;
  /// Replaces the gradient of a leaf; an undefined tensor removes it.
  void set_grad(const Tensor& grad);
  /// Accumulates d(this)/d(leaf) into every leaf's grad. `this` must have one element; frees the
  /// graph.
  void backward() const;
  /// The same for a tensor of any shape, from its `gradient`; retain_graph keeps the graph.
  void backward(const Tensor& gradient, bool retain_graph = false) const;
  /// Returns the same data without history: free, shares storage.
  Tensor detach() const { return Tensor(body_); }

  // --- operations: x.sum({1}) is sum(x, {1}), recorded in the same way. The functions of the same
  // names in autograd/ops.h are documented there. Defined in autograd/engine.cpp.
  Tensor sum(const Dims& dims = {}, bool keep = false) const;
  Tensor mean(const Dims& dims = {}, bool keep = false) const;
  Tensor var(const Dims& dims = {}, double correction = 1, bool keep = false) const;
  Tensor std(const Dims& dims = {}, double correction = 1, bool keep = false) const;
  Tensor max(const Dims& dims = {}, bool keep = false) const;
  Tensor min(const Dims& dims = {}, bool keep = false) const;
  Tensor prod(const Dims& dims = {}, bool keep = false) const;
  Tensor norm(const Dims& dims = {}, bool keep = false) const;
  Tensor any(const Dims& dims = {}, bool keep = false) const;
  Tensor all(const Dims& dims = {}, bool keep = false) const;
  Tensor argmax(std::optional<int> dim = {}, bool keep = false) const;
  Tensor argmin(std::optional<int> dim = {}, bool keep = false) const;
  Tensor softmax(int dim) const;
  Tensor abs() const;
  Tensor exp() const;
  Tensor log() const;
  Tensor sqrt() const;
  Tensor pow(Number exponent) const;
  Tensor clamp(std::optional<Number> low, std::optional<Number> high = {}) const;
  Tensor matmul(const Tensor& other) const;
  /// Returns select(x, 0, i).
  Tensor operator[](int64_t i) const;
  /// Return index(x, indices): x[mask] (bool), x[i] (indices), x[{i, j}] (indices per dimension).
  Tensor operator[](const Tensor& mask_or_index) const;
  Tensor operator[](std::initializer_list<Tensor> indices) const;
  Tensor slice(int dim, std::optional<int64_t> start, std::optional<int64_t> end = {},
               int64_t step = 1) const;
  Tensor reshape(const Shape& shape) const;
  Tensor permute(const Dims& order) const;
  Tensor expand(const Shape& shape) const;
  template <std::integral... T>
  requires(sizeof...(T) > 0) Tensor reshape(T... sizes)
  const { return reshape(Shape{int64_t(sizes)...}); }
  template <std::integral... T>
  requires(sizeof...(T) > 0) Tensor permute(T... dims)
  const { return permute(Dims{int64_t(dims)...}); }
  template <std::integral... T>
  requires(sizeof...(T) > 0) Tensor expand(T... sizes)
  const { return expand(Shape{int64_t(sizes)...}); }
  Tensor transpose(int a, int b) const;
  Tensor flatten(int start = 0, int end = -1) const;
  Tensor squeeze() const;
  Tensor squeeze(int dim) const;
  Tensor unsqueeze(int dim) const;
  Tensor contiguous() const;

  const std::shared_ptr<TensorBody>& body() const { return body_; }
  const std::shared_ptr<AutogradMeta>& meta() const { return meta_; }
  std::shared_ptr<AutogradMeta>& meta() { return meta_; }

 private:
  [[noreturn, gnu::cold]] static void fail_undefined(const char* asked);
  /// Returns the body of this tensor; `asked` is for the message if the tensor is undefined.
  const TensorBody& held(const char* asked) const {
    if (!body_) fail_undefined(asked);
    return *body_;
  }

  std::shared_ptr<TensorBody> body_;
  std::shared_ptr<AutogradMeta> meta_;
};

/// Prints values, as NumPy does, then shape and dtype; long dimensions are shortened.
std::ostream& operator<<(std::ostream& out, const Tensor& x);

/// "[32, 784] bf16": how tensors appear in error messages.
struct Described {
  const Tensor& tensor;
};
std::ostream& operator<<(std::ostream& out, Described d);
inline Described described(const Tensor& x) { return {x}; }

}  // namespace halftone

// Views: other shapes and strides over the same storage. Metadata only: nothing is recorded and
// nothing is copied, except by contiguous() and channels_last(), which copy if the layout differs.
// Operations and backends build on these; users call the recorded operations of the same names in
// autograd/ops/shape.h.

namespace halftone::views {

Tensor transpose(const Tensor& x, int a, int b);
/// Permutes dimensions: dimension i of the result is dimension order[i] of x.
Tensor permute(const Tensor& x, const Dims& order);
/// Returns the same elements in row-major order under another shape, if strides can express it.
std::optional<Tensor> reshape(const Tensor& x, const Shape& shape);
/// Broadcasts to `shape` with strides of 0; x's shape must broadcast to it.
Tensor expand(const Tensor& x, const Shape& shape);
/// Returns elements start, start + step, ... of one dimension, `count` of them.
Tensor slice(const Tensor& x, int dim, int64_t start, int64_t count, int64_t step = 1);

/// Returns x itself if it is row-major, else a row-major copy.
Tensor contiguous(const Tensor& x);
/// Returns x itself if it is NHWC in memory, else a copy that is (rank 4).
Tensor channels_last(const Tensor& x);
/// Returns x itself if it has exactly these dense strides, else a copy that has them.
Tensor with_strides(const Tensor& x, const Strides& strides);
/// Returns x under another shape; copies x first if strides cannot express the result.
Tensor reshaped(const Tensor& x, const Shape& shape);

}  // namespace halftone::views
