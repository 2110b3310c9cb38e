// Shapes, tensors, views and printing.
#include <halftone/core/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <ostream>

#include <halftone/core/backend.h>
#include <halftone/core/error.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/op_info.h>

namespace halftone {

Dims::Dims(std::span<const int64_t> values) {
  for (int64_t v : values) push_back(v);
}

Dims Dims::filled(int rank, int64_t value) {
  Dims dims;
  for (int i = 0; i < rank; ++i) dims.push_back(value);
  return dims;
}

void Dims::fail_index(int i) const {
  fail<ShapeError>("shape", "index ", i, " is out of range for ", *this, ". Use ", -rank_, " to ",
                   rank_ - 1, ".");
}

void Dims::push_back(int64_t value) {
  if (rank_ == max_rank)
    fail<ShapeError>("shape", "more than ", max_rank, " dimensions. Reshape to fewer.");
  values_[std::size_t(rank_++)] = value;
}

void Dims::insert(int at, int64_t value) {
  push_back(value);
  std::rotate(begin() + at, end() - 1, end());
}

void Dims::erase(int at) {
  std::rotate(begin() + at, begin() + at + 1, end());
  --rank_;
}

bool Dims::operator==(const Dims& other) const { return std::ranges::equal(*this, other); }

std::ostream& operator<<(std::ostream& out, const Dims& dims) {
  const PlainNumbers scope(out);
  out << '[';
  for (int i = 0; i < dims.rank(); ++i) out << (i ? ", " : "") << dims[i];
  return out << ']';
}

int64_t numel_of(const Shape& shape) {
  int64_t n = 1;
  bool overflow = false;
  for (int64_t size : shape) {
    if (size < 0)
      fail<ShapeError>("shape", "negative size in ", shape, ". Sizes must be at least 0.");
    overflow |= __builtin_mul_overflow(n, size, &n);
  }
  const bool any_zero = std::ranges::find(shape, 0) != shape.end();
  if (overflow && !any_zero)
    fail<ShapeError>("shape", "too many elements in ", shape, ". Use a smaller shape.");
  return any_zero ? 0 : n;
}

int64_t rows_of(const Shape& shape) {
  Shape leading = shape;
  leading.erase(shape.rank() - 1);
  return numel_of(leading);
}

namespace {
/// Multiplies sizes that have not been checked yet: an overflow is refused when elements are
/// counted, or belongs to a tensor without any.
int64_t times(int64_t a, int64_t b) { return int64_t(uint64_t(a) * uint64_t(b)); }
}  // namespace

Strides contiguous_strides(const Shape& shape) {
  Strides strides = Dims::filled(shape.rank(), 1);
  for (int i = shape.rank() - 2; i >= 0; --i)
    strides[i] = times(strides[i + 1], std::max<int64_t>(shape[i + 1], 1));
  return strides;
}

Strides channels_last_strides(const Shape& shape) {
  const int64_t c = shape[1], h = shape[2], w = shape[3];
  return {times(times(c, h), w), 1, times(w, c), c};
}

namespace {
/// Returns dimensions by decreasing stride; equal strides (sizes of 1) keep their logical order.
std::array<int, Dims::max_rank> order_by_stride(const Shape& shape, const Strides& strides) {
  std::array<int, Dims::max_rank> order{};
  for (int i = 0; i < shape.rank(); ++i) order[std::size_t(i)] = i;
  std::stable_sort(order.begin(), order.begin() + shape.rank(), [&](int a, int b) {
    return strides[a] != strides[b] ? strides[a] > strides[b] : false;
  });
  return order;
}
}  // namespace

bool is_dense(const Shape& shape, const Strides& strides) {
  const auto order = order_by_stride(shape, strides);
  int64_t expected = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    const int dim = order[std::size_t(i)];
    if (shape[dim] == 1) continue;
    if (strides[dim] != expected) return false;
    expected *= shape[dim];
  }
  return true;
}

Strides strides_in_order_of(const Shape& shape, const Strides& strides) {
  if (!is_dense(shape, strides)) return contiguous_strides(shape);
  const auto order = order_by_stride(shape, strides);
  Strides result = Dims::filled(shape.rank(), 1);
  int64_t next = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    const int dim = order[std::size_t(i)];
    result[dim] = next;
    next *= std::max<int64_t>(shape[dim], 1);
  }
  return result;
}

Shape broadcast_shapes(std::string_view op, const Shape& a, const Shape& b) {
  if (a == b) return a;
  const int rank = std::max(a.rank(), b.rank());
  Shape result = Dims::filled(rank, 1);
  for (int i = 1; i <= rank; ++i) {
    const int64_t sa = i <= a.rank() ? a[a.rank() - i] : 1,
                  sb = i <= b.rank() ? b[b.rank() - i] : 1;
    if (sa != sb && sa != 1 && sb != 1)
      fail<ShapeError>(op, "shapes do not broadcast: ", a, " and ", b, " differ in dimension ",
                       rank - i, ". Sizes must be equal, or one of them 1.");
    result[rank - i] = sa == 1 ? sb : sa;
  }
  return result;
}

int normalize_dim(std::string_view op, int64_t dim, int rank) {
  const int64_t limit = std::max(rank, 1);
  if (dim < -limit || dim >= limit)
    fail<ShapeError>(op, "dimension ", dim, " is out of range for rank ", rank, ". Use ", -limit,
                     " to ", limit - 1, ".");
  return int(dim < 0 ? dim + limit : dim);
}

// Metadata and host access of Tensor. The autograd verbs are defined in
// autograd/engine.cpp.

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

// The stride arithmetic of views.

bool has_overlap(const Tensor& y) {
  if (y.numel() < 2 || y.is_contiguous()) return false;
  Strides strides;  // from the smallest on, each must be beyond the reach of those before it
  for (int i = 0; i < y.rank(); ++i) {
    int at = 0;
    while (at < strides.rank() && strides[at] < std::abs(y.strides()[i])) ++at;
    if (y.shape()[i] > 1) strides.insert(at, std::abs(y.strides()[i]));
  }
  int64_t reach = 0;
  for (const int64_t stride : strides) {
    if (stride <= reach) return true;
    for (int i = 0; i < y.rank(); ++i)
      if (y.shape()[i] > 1 && std::abs(y.strides()[i]) == stride)
        reach += stride * (y.shape()[i] - 1);
  }
  return false;
}

void require_writable(const Tensor& y) {
  if (has_overlap(y))
    fail<UsageError>(running_operation("write"), described(y), " with strides ", y.strides(),
                     " has several elements in one place, as an expanded tensor has, and cannot be "
                     "written. Write into a clone() of it.");
}

}  // namespace halftone

namespace halftone::views {

Tensor transpose(const Tensor& x, int a, int b) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return x.view_as(shape, strides, x.offset());
}

Tensor permute(const Tensor& x, const Dims& order) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  for (int i = 0; i < order.rank(); ++i) {
    shape[i] = x.shape()[int(order[i])];
    strides[i] = x.strides()[int(order[i])];
  }
  return x.view_as(shape, strides, x.offset());
}

std::optional<Tensor> reshape(const Tensor& x, const Shape& shape) {
  if (x.is_contiguous()) return x.view_as(shape, contiguous_strides(shape), x.offset());
  // Walks both shapes from the last dimension, matching runs of old dimensions that are contiguous
  // among themselves with runs of new ones of the same product.
  Strides strides = Dims::filled(shape.rank(), 1);
  int next = shape.rank() - 1;
  int64_t run = 1, base = x.rank() ? x.strides()[x.rank() - 1] : 1;
  for (int old = x.rank() - 1; old >= 0; --old) {
    run *= x.shape()[old];
    const bool ends = old == 0 || (x.shape()[old - 1] != 1 && x.strides()[old - 1] != run * base);
    if (!ends) continue;
    int64_t covered = 1;
    while (next >= 0 && (covered < run || shape[next] == 1)) {
      strides[next] = covered * base;
      covered *= shape[next--];
    }
    if (covered != run) return std::nullopt;
    if (old > 0) run = 1, base = x.strides()[old - 1];
  }
  if (next >= 0) return std::nullopt;
  return x.view_as(shape, strides, x.offset());
}

Tensor expand(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  Strides strides = Dims::filled(shape.rank(), 0);
  for (int i = 1; i <= x.rank(); ++i)
    if (x.shape()[x.rank() - i] != 1 || shape[shape.rank() - i] == 1)
      strides[shape.rank() - i] = x.strides()[x.rank() - i];
  return x.view_as(shape, strides, x.offset());
}

Tensor slice(const Tensor& x, int dim, int64_t start, int64_t count, int64_t step) {
  Shape shape = x.shape();
  Strides strides = x.strides();
  shape[dim] = count;
  if (count > 1) strides[dim] *= step;  // else nothing is stepped over
  return x.view_as(shape, strides, x.offset() + start * x.strides()[dim]);
}

Tensor contiguous(const Tensor& x) {
  if (x.is_contiguous()) return x;
  Tensor y = empty(x.shape(), x.dtype(), x.device());
  backend_for(x).copy(x, y);
  return y;
}

Tensor channels_last(const Tensor& x) {
  if (x.is_channels_last()) return x;
  Tensor y = empty_channels_last(x.shape(), x.dtype(), x.device());
  backend_for(x).copy(x, y);
  return y;
}

Tensor with_strides(const Tensor& x, const Strides& strides) {
  if (x.strides() == strides) return x;
  Tensor y = empty_strided(x.shape(), strides, x.dtype(), x.device());
  backend_for(x).copy(x, y);
  return y;
}

Tensor reshaped(const Tensor& x, const Shape& shape) {
  if (std::optional<Tensor> view = reshape(x, shape)) return *view;
  return contiguous(x).view_as(shape, contiguous_strides(shape), 0);
}

}  // namespace halftone::views

// Prints tensors: nested brackets as NumPy's, long dimensions shortened to three at each end, then
// shape and dtype.

namespace halftone {

namespace {
constexpr int64_t shown_at_each_end = 3, longest_shown = 8;

/// block() prints the part that starts at element `offset` and spans dimensions dim.. of the shape.
class Printer {
 public:
  Printer(std::ostream& out, const Tensor& x)
      : out_(out), shape_(x.shape()), strides_(contiguous_strides(x.shape())), dtype_(x.dtype()) {
    if (is_floating(dtype_)) values_ = x.to_vector<double>();
    else integers_ = x.to_vector<int64_t>();
    for (int64_t i = 0; i < x.numel(); ++i) width_ = std::max(width_, text(std::size_t(i)).size());
  }

  void block(int dim, int64_t offset) {
    if (dim == shape_.rank()) {
      out_ << std::setw(int(width_)) << text(std::size_t(offset));
      return;
    }
    out_ << '[';
    const int64_t size = shape_[dim];
    for (int64_t i = 0; i < size; ++i) {
      if (size > longest_shown && i == shown_at_each_end) {
        separator(dim, i);
        out_ << "...";
        i = size - shown_at_each_end;
      }
      separator(dim, i);
      block(dim + 1, offset + i * strides_[dim]);
    }
    out_ << ']';
  }

 private:
  void separator(int dim, int64_t i) {
    if (i == 0) return;
    if (dim == shape_.rank() - 1) out_ << ", ";
    else out_ << ",\n" << std::string(std::size_t(dim + 1), ' ');
  }

  std::string text(std::size_t i) const {
    PlainText s;
    if (dtype_ == boolean) s << (integers_[i] != 0 ? "true" : "false");
    else if (!is_floating(dtype_)) s << integers_[i];
    else s << std::setprecision(5) << values_[i];
    return s.str();
  }

  std::ostream& out_;
  const Shape& shape_;
  Strides strides_;
  std::vector<double> values_;  // only one of the two is filled: a double does not hold every i64
  std::vector<int64_t> integers_;
  DType dtype_;
  std::size_t width_ = 0;
};
}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& x) {
  if (!x.defined()) return out << "undefined tensor";
  Printer(out, x).block(0, 0);
  return out << "  " << described(x);
}

}  // namespace halftone
