// Argument rules of the operations by index.
#include <halftone/autograd/ops/index.h>

#include <algorithm>

#include <halftone/autograd/ops/reduce.h>

namespace halftone {

namespace detail {

Tensor indices_within(std::string_view op, const Tensor& index, int64_t size) {
  const Tensor wide = wide_indices(op, "the index", index);
  if (wide.device().kind != DeviceKind::cpu || wide.numel() == 0) return wide;
  const Tensor dense = views::contiguous(wide);
  const int64_t* const values = dense.data<int64_t>();
  for (int64_t i = 0, count = dense.numel(); i < count; ++i)
    if (values[i] < 0 || values[i] >= size)
      fail<UsageError>(op, "index ", values[i], " is out of range for a dimension of size ", size,
                       ". Indices must be from 0 to ", size - 1, ".");
  return wide;
}

Tensor reached(std::string_view op, const Tensor& x, int dim, const Shape& shape) {
  bool fits = x.rank() == shape.rank();
  for (int d = 0; fits && d < shape.rank(); ++d) fits = d == dim || shape[d] <= x.shape()[d];
  if (!fits)
    fail<ShapeError>(op, "the index is ", shape, " for ", described(x), " along dimension ", dim,
                     ". It must have the same rank, and in other dimensions sizes up to those.");
  Tensor part = x;
  for (int d = 0; d < shape.rank(); ++d)
    if (d != dim && shape[d] != x.shape()[d]) part = views::slice(part, d, 0, shape[d]);
  return part;
}

namespace {
/// Returns a scalar as a vector of one element.
Tensor raised(const Tensor& x) { return x.rank() == 0 ? reshape(x, {1}) : x; }
}  // namespace
}  // namespace detail

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  check::defined("gather", "the input", x);
  check::defined("gather", "the index", index);
  const int d = normalize_dim("gather", dim, x.rank());
  const Tensor from = detail::raised(x);
  const Tensor within = detail::indices_within("gather", detail::raised(index), from.shape()[d]);
  return reshape(apply(Gather{.dim = d}, from, within), index.shape());
}

Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source) {
  check::defined("scatter_add", "the input", x);
  check::defined("scatter_add", "the index", index);
  check::defined("scatter_add", "the source", source);
  const int d = normalize_dim("scatter_add", dim, x.rank());
  const Tensor to = detail::raised(x), from = detail::raised(source);
  const Tensor within = detail::indices_within("scatter_add", detail::raised(index), to.shape()[d]);
  bool fits = from.rank() == within.rank();
  for (int i = 0; fits && i < within.rank(); ++i) fits = within.shape()[i] <= from.shape()[i];
  if (!fits)
    fail<ShapeError>("scatter_add", "the index is ", described(index), ", the source ",
                     described(source), ". The source must be as large in every dimension.");
  return reshape(apply(ScatterAdd{.dim = d}, to, within, from), x.shape());
}

Tensor index_select(const Tensor& x, int dim, const Tensor& index) {
  check::defined("index_select", "the input", x);
  check::defined("index_select", "the index", index);
  const int d = normalize_dim("index_select", dim, x.rank());
  if (index.rank() > 1)
    fail<ShapeError>("index_select", "the index is ", described(index),
                     ". It must be a vector. Use gather() for more.");
  const Tensor from = detail::raised(x);
  const Tensor within =
      detail::indices_within("index_select", detail::raised(index), from.shape()[d]);
  Shape column = Dims::filled(from.rank(), 1), shape = from.shape();
  column[d] = shape[d] = within.numel();
  const Tensor y =
      apply(Gather{.dim = d}, from, views::expand(views::reshaped(within, column), shape));
  return x.rank() == 0 ? reshape(y, {}) : y;
}

Tensor masked_fill(const Tensor& x, const Tensor& mask, Number value) {
  check::defined("masked_fill", "the input", x);
  check::defined("masked_fill", "the mask", mask);
  if (mask.dtype() != boolean)
    fail<DTypeError>("masked_fill", "the mask must be bool, got ", described(mask),
                     ". Compare first.");
  const double largest = facts(x.dtype()).max;
  const bool whole = is_floating(x.dtype()) || value.whole;
  const bool below = value.value < 0 && (x.dtype() == u8 || x.dtype() == boolean);
  if (!whole || below || (std::isfinite(value.value) && std::abs(value.value) > largest))
    fail<UsageError>("masked_fill", "the value ", value.value, " is not one of ", x.dtype(),
                     ", whose largest is ", largest, ". Use one that fits, or an infinity.");
  return where(mask, scalar(value, x.dtype(), x.device()), x);
}

Tensor one_hot(const Tensor& index, int64_t classes) {
  const Tensor wide = detail::wide_indices("one_hot", "the index", index);
  constexpr double most = double(int64_t(1) << 40);
  if (classes == -1 && wide.numel() > 0)
    classes = int64_t(std::clamp(max(wide).item() + 1, -most, 2 * most));
  if (classes < 1 || double(classes) > most)
    fail<UsageError>("one_hot", classes, " classes for ", described(index),
                     ". Give their number, 1 or more.");
  const Tensor within = detail::indices_within("one_hot", wide, classes);
  Shape shape = index.shape();
  shape.push_back(classes);
  const Tensor column = unsqueeze(within, -1);
  const Tensor one = views::expand(scalar(1, i64, index.device()), column.shape());
  return apply(ScatterAdd{.dim = index.rank()}, zeros(shape, i64, index.device()), column, one);
}

}  // namespace halftone
