// Shape arithmetic: element counts, strides, broadcasting.
#include <halftone/core/shape.h>

#include <algorithm>
#include <ostream>

#include <halftone/core/error.h>

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

}  // namespace halftone
