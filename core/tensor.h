// Tensor is a handle of two pointers: its content (a TensorBody: storage, offset, shape, strides,
// dtype) and its history (autograd's record, opaque here). Copies are handles to the same data.
// Methods are metadata, data access and the autograd verbs; every operation is a free function
// (autograd/ops.h), and the most used ones are members as well.
#pragma once

#include <cassert>
#include <concepts>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <halftone/core/device.h>
#include <halftone/core/dtype.h>
#include <halftone/core/number.h>
#include <halftone/core/shape.h>
#include <halftone/core/storage.h>

namespace halftone {

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
  /// Returns the size of a dimension, counted from the end if negative; throws ShapeError.
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
  /// Returns the value of a tensor of one element; throws ShapeError for more.
  double item() const;
  /// The same in another type: item<int64_t>(), because a double does not hold every i64.
  template <class T> T item() const;
  /// Returns one element by its coordinates, on the host: for tests and printing, not for loops
  /// that matter.
  double at(std::initializer_list<int64_t> index) const;
  /// Returns another view of the same storage, from element `offset` of the storage. Checked
  /// against the storage's size.
  Tensor view_as(const Shape& shape, const Strides& strides, int64_t offset) const;
  /// Returns a copy on another device (the same handle if it is already there). Not recorded.
  Tensor to(Device device) const;
  /// Returns cast(x, dtype), a recorded operation. Defined in autograd/tensor_autograd.cpp.
  Tensor to(DType dtype) const;
  /// Returns a dense copy of the data in the same dimension order. Not recorded.
  Tensor clone() const;

  // --- autograd (defined in autograd/tensor_autograd.cpp)
  bool requires_grad() const;
  /// Makes backward compute a gradient for this leaf. Throws UsageError for tensors computed by
  /// operations and for integers.
  Tensor& set_requires_grad(bool value = true);
  /// Returns true for tensors that no recorded operation made.
  bool is_leaf() const;
  /// Returns the accumulated gradient of a leaf, undefined before the first backward().
  Tensor grad() const;
  void set_grad(const Tensor& grad);
  /// Accumulates d(this)/d(leaf) into every leaf's grad. `this` must have one element; frees the
  /// graph.
  void backward() const;
  /// The same, starting from a given gradient of this tensor.
  void backward(const Tensor& gradient, bool retain_graph = false) const;
  /// Returns the same data without history: free, shares storage.
  Tensor detach() const { return Tensor(body_); }

  // --- operations: x.sum({1}) is sum(x, {1}), recorded in the same way. The functions of the same
  // names in autograd/ops.h are documented there. Defined in autograd/tensor_members.cpp.
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
