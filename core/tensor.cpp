// Metadata and host access of Tensor. The autograd verbs are defined in
// autograd/tensor_autograd.cpp.
#include <halftone/core/tensor.h>

#include <algorithm>
#include <ostream>

#include <halftone/core/backend.h>
#include <halftone/core/caching_allocator.h>
#include <halftone/core/factory.h>
#include <halftone/core/op_info.h>

namespace halftone {

void Tensor::fail_undefined(const char* asked) {
  fail<UsageError>(running_operation(asked), "a tensor is undefined, it has no ", asked,
                   ". It was made by Tensor(), or is the "
                   "gradient of a leaf that no backward() has reached, or an optional result that "
                   "was left out. Ask defined() first.");
}

bool Tensor::is_contiguous() const {
  int64_t expected = 1;
  for (int i = rank() - 1; i >= 0; --i) {
    if (shape()[i] == 1) continue;
    if (strides()[i] != expected) return numel() == 0;
    expected *= shape()[i];
  }
  return true;
}

bool Tensor::is_channels_last() const {
  if (rank() != 4) return false;
  const Strides wanted = channels_last_strides(shape());
  for (int i = 0; i < 4; ++i)
    if (shape()[i] != 1 && strides()[i] != wanted[i]) return false;
  return true;
}

template <class T> std::vector<T> Tensor::to_vector() const {
  Tensor dense = *this;
  if (dtype() != dtype_of<T> || !is_contiguous() || device().kind != DeviceKind::cpu) {
    dense = empty(shape(), dtype_of<T>, device());
    backend_for(*this).copy(*this, dense);
  }
  return or_no_memory(running_operation("to_vector"), numel() * int64_t(sizeof(T)), [&] {
    const auto count = std::size_t(numel());
    // std::vector<bool> has no data(), so every element type is copied through a plain buffer.
    const auto buffer = std::make_unique<T[]>(count);
    backend_for(dense).copy_to_host(dense.raw_data(), buffer.get(), count * sizeof(T));
    return std::vector<T>(buffer.get(), buffer.get() + count);
  });
}
template std::vector<double> Tensor::to_vector() const;
template std::vector<float> Tensor::to_vector() const;
template std::vector<int64_t> Tensor::to_vector() const;
template std::vector<int32_t> Tensor::to_vector() const;
template std::vector<uint8_t> Tensor::to_vector() const;
template std::vector<bool> Tensor::to_vector() const;

template <class T> T Tensor::item() const {
  if (!defined() || numel() != 1)
    fail<ShapeError>("item", "needs one element, got ", described(*this),
                     ". Reduce or index first.");
  return to_vector<T>()[0];
}
template double Tensor::item<double>() const;
template float Tensor::item<float>() const;
template int64_t Tensor::item<int64_t>() const;
template int32_t Tensor::item<int32_t>() const;
template uint8_t Tensor::item<uint8_t>() const;
template bool Tensor::item<bool>() const;
double Tensor::item() const { return item<double>(); }

double Tensor::at(std::initializer_list<int64_t> index) const {
  if (int(index.size()) != rank())
    fail<ShapeError>("at", index.size(), " coordinates for ", described(*this),
                     ". Give one per dimension.");
  int64_t position = offset();
  int dim = 0;
  for (int64_t i : index) {
    if (i < 0 || i >= shape()[dim])
      fail<ShapeError>("at", "index ", i, " is out of range for dimension ", dim, " of ",
                       described(*this), ". Use 0 to ", shape()[dim] - 1, ".");
    position += i * strides()[dim++];
  }
  return view_as({}, {}, position).item();
}

Tensor Tensor::view_as(const Shape& shape, const Strides& strides, int64_t offset) const {
  int64_t first = offset, last = offset;
  bool inside = shape.rank() == strides.rank();
  for (int i = 0; inside && i < shape.rank(); ++i) {
    int64_t reach = 0, &end = strides[i] < 0 ? first : last;
    inside = !__builtin_mul_overflow(shape[i] - 1, strides[i], &reach) &&
             !__builtin_add_overflow(end, reach, &end);
  }
  inside = inside && first >= 0 && last < storage()->bytes() / size_of(dtype());
  if (numel_of(shape) != 0 && !inside)
    fail<ShapeError>("view_as", "shape ", shape, " with strides ", strides, " and offset ", offset,
                     " leaves the ", storage()->bytes(),
                     " bytes of the storage. Use sizes that fit.");
  return Tensor(
      std::make_shared<TensorBody>(TensorBody{storage(), offset, shape, strides, dtype()}));
}

Tensor Tensor::to(Device target) const {
  if (target == device()) return *this;
  const Tensor dense = is_dense() ? *this : clone();
  Tensor result = empty_strided(dense.shape(), dense.strides(), dtype(), target);
  const auto bytes = std::size_t(dense.bytes());
  if (device().kind == DeviceKind::cpu) {
    backend_for(result).copy_from_host(dense.raw_data(), result.raw_data(), bytes);
  } else if (target.kind == DeviceKind::cpu) {
    backend_for(dense).copy_to_host(dense.raw_data(), result.raw_data(), bytes);
  } else {
    const auto staging = std::make_unique<std::byte[]>(bytes);
    backend_for(dense).copy_to_host(dense.raw_data(), staging.get(), bytes);
    backend_for(result).copy_from_host(staging.get(), result.raw_data(), bytes);
  }
  return result;
}

Tensor Tensor::clone() const {
  Tensor result = empty_like(*this);
  backend_for(*this).copy(*this, result);
  return result;
}

std::ostream& operator<<(std::ostream& out, Described d) {
  if (!d.tensor.defined()) return out << "an undefined tensor";
  return out << d.tensor.shape() << ' ' << d.tensor.dtype();
}

}  // namespace halftone
