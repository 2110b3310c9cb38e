// Factories: allocate a tensor, then let the backend fill it.
#include <halftone/core/factory.h>

#include <algorithm>
#include <cmath>

#include <halftone/core/backend.h>
#include <halftone/core/memory.h>
#include <halftone/core/random.h>

namespace halftone {

Tensor empty_strided(const Shape& shape, const Strides& strides, DType dtype, Device device) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(numel_of(shape), size_of(dtype), &bytes))
    fail<ShapeError>("empty", "too many bytes for ", shape, ' ', dtype, ". Use a smaller shape.");
  auto storage = std::make_shared<Storage>(bytes, device);
  return Tensor(
      std::make_shared<TensorBody>(TensorBody{std::move(storage), 0, shape, strides, dtype}));
}

Tensor empty(const Shape& shape, DType dtype, Device device) {
  return empty_strided(shape, contiguous_strides(shape), dtype, device);
}

Tensor empty_like(const Tensor& x) { return empty_like(x, x.dtype()); }
Tensor empty_like(const Tensor& x, DType dtype) {
  return empty_strided(x.shape(), strides_in_order_of(x.shape(), x.strides()), dtype, x.device());
}
Tensor empty_channels_last(const Shape& shape, DType dtype, Device device) {
  return empty_strided(shape, channels_last_strides(shape), dtype, device);
}

Tensor full(const Shape& shape, Number value, DType dtype, Device device) {
  Tensor y = empty(shape, dtype, device);
  backend_for(y).fill(value, y);
  return y;
}
Tensor zeros(const Shape& shape, DType dtype, Device device) {
  return full(shape, 0, dtype, device);
}
Tensor ones(const Shape& shape, DType dtype, Device device) {
  return full(shape, 1, dtype, device);
}
Tensor scalar(Number value, DType dtype, Device device) { return full({}, value, dtype, device); }

namespace {
Tensor filled_like(const Tensor& x, Number value) {
  Tensor y = empty_like(x);
  backend_for(y).fill(value, y);
  return y;
}
}  // namespace
Tensor zeros_like(const Tensor& x) { return filled_like(x, 0); }
Tensor ones_like(const Tensor& x) { return filled_like(x, 1); }

template <class T>
Tensor from_span(std::span<const T> values, const Shape& shape, DType dtype, Device device) {
  if (int64_t(values.size()) != numel_of(shape))
    fail<ShapeError>("from", values.size(), " values do not fill shape ", shape, ", which has ",
                     numel_of(shape), " elements. Give as many values as elements.");
  Tensor host = empty(shape, dtype_of<T>);
  std::ranges::copy(values, host.data<T>());
  if (dtype != dtype_of<T>) {
    Tensor converted = empty(shape, dtype);
    backend_for(host).copy(host, converted);
    host = converted;
  }
  return host.to(device);
}
template Tensor from_span(std::span<const double>, const Shape&, DType, Device);
template Tensor from_span(std::span<const float>, const Shape&, DType, Device);
template Tensor from_span(std::span<const int64_t>, const Shape&, DType, Device);
template Tensor from_span(std::span<const int32_t>, const Shape&, DType, Device);
template Tensor from_span(std::span<const uint8_t>, const Shape&, DType, Device);
template Tensor from_span(std::span<const bool>, const Shape&, DType, Device);

void detail::require_same_columns(std::size_t columns, std::size_t in_this_row) {
  if (in_this_row != columns)
    fail<ShapeError>("from", "rows of ", columns, " and ", in_this_row,
                     " values. Rows must be equally long.");
}

Tensor from(std::initializer_list<double> values, DType dtype, Device device) {
  return from_span<double>({values.begin(), values.size()}, {int64_t(values.size())}, dtype,
                           device);
}

Tensor from(std::initializer_list<std::initializer_list<double>> rows, DType dtype, Device device) {
  std::vector<double> values;
  const std::size_t columns = rows.size() ? rows.begin()->size() : 0;
  for (const auto& row : rows) {
    detail::require_same_columns(columns, row.size());
    values.insert(values.end(), row);
  }
  return from_vector<double>(values, {int64_t(rows.size()), int64_t(columns)}, dtype, device);
}

namespace {
std::vector<double> zeros_on_host(std::string_view op, int64_t count) {
  return or_no_memory(op, count * int64_t(sizeof(double)),
                      [&] { return std::vector<double>(static_cast<std::size_t>(count)); });
}

/// Returns element(i) for every i below count.
template <class T, class Element>
Tensor range_of(double count, const Element& element, DType dtype, Device device) {
  if (count > double(int64_t(1) << 40))
    fail<ShapeError>("arange", count, " elements are too many. Use a larger step.");
  const std::size_t size = count > 0 ? std::size_t(count) : 0;
  std::vector<T> values =
      or_no_memory("arange", int64_t(size * sizeof(T)), [&] { return std::vector<T>(size); });
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = element(int64_t(i));
  return from_vector<T>(values, {int64_t(values.size())}, dtype, device);
}
}  // namespace

Tensor detail::arange(Number start, Number end, Number step, DType dtype, Device device) {
  const double from = start.value, to = end.value, by = step.value;
  if (!(by != 0) || !std::isfinite(from) || !std::isfinite(to) || !std::isfinite(by))
    fail<UsageError>("arange", "start ", from, ", end ", to, ", step ", by,
                     ". Numbers must be finite and step not 0.");
  if (!start.whole || !end.whole || !step.whole)
    return range_of<double>(
        std::ceil((to - from) / by), [&](int64_t i) { return from + double(i) * by; }, dtype,
        device);
  // The distance of two i64 fits in 64 bits without a sign.
  const bool up = step.integer > 0,
             empty = up ? start.integer >= end.integer : start.integer <= end.integer;
  const uint64_t distance = up ? uint64_t(end.integer) - uint64_t(start.integer)
                               : uint64_t(start.integer) - uint64_t(end.integer);
  const uint64_t size = up ? uint64_t(step.integer) : -uint64_t(step.integer);
  return range_of<int64_t>(
      empty ? 0 : double((distance - 1) / size + 1),
      [&](int64_t i) {
        return math::wrapped_sum(start.integer, math::wrapped_product(i, step.integer));
      },
      dtype, device);
}

Tensor linspace(double start, double end, int64_t steps, DType dtype, Device device) {
  if (steps < 0 || steps > int64_t(1) << 40 || !std::isfinite(start) || !std::isfinite(end))
    fail<UsageError>("linspace", steps, " steps from ", start, " to ", end,
                     ". The number of steps must be 0 or more, the ends finite.");
  // From both ends, so that each end is exact and the values are symmetric, as PyTorch's.
  const double step = steps > 1 ? (end - start) / double(steps - 1) : 0;
  std::vector<double> values = zeros_on_host("linspace", steps);
  for (int64_t i = 0; i < steps; ++i)
    values[std::size_t(i)] =
        i < steps / 2 || steps == 1 ? start + step * double(i) : end - step * double(steps - 1 - i);
  return from_vector<double>(values, {steps}, dtype, device);
}

Tensor eye(int64_t rows, int64_t columns, DType dtype, Device device) {
  Tensor y = zeros({rows, columns == -1 ? rows : columns}, dtype, device);
  const int64_t width = y.shape()[1];
  Tensor diagonal = y.view_as({std::min(rows, width)}, {width + 1}, 0);
  backend_for(y).fill(1, diagonal);
  return y;
}

Tensor rand(const Shape& shape, DType dtype, Device device) {
  Tensor y = empty(shape, dtype, device);
  backend_for(y).uniform(0, 1, default_generator().reserve(uint64_t(y.numel())), y);
  return y;
}
Tensor randn(const Shape& shape, DType dtype, Device device) {
  Tensor y = empty(shape, dtype, device);
  backend_for(y).normal(0, 1, default_generator().reserve(uint64_t(y.numel())), y);
  return y;
}
Tensor randint(int64_t low, int64_t high, const Shape& shape, DType dtype, Device device) {
  if (low >= high)
    fail<UsageError>("randint", "the range [", low, ", ", high, ") is empty. Use low < high.");
  Tensor y = empty(shape, dtype, device);
  backend_for(y).random_integers(low, high, default_generator().reserve(uint64_t(y.numel())), y);
  return y;
}
Tensor normal(double mean, double std, const Shape& shape, DType dtype, Device device) {
  if (!(std >= 0)) fail<UsageError>("normal", "std is ", std, ". It must not be negative.");
  Tensor y = empty(shape, dtype, device);
  backend_for(y).normal(mean, std, default_generator().reserve(uint64_t(y.numel())), y);
  return y;
}
Tensor randperm(int64_t n, DType dtype, Device device) {
  if (n < 0) fail<UsageError>("randperm", "n is ", n, ". It must not be negative.");
  const Tensor order = detail::arange(0, n, 1, i64, {});
  int64_t* const places = order.data<int64_t>();
  for (int64_t i = n - 1; i > 0; --i)
    std::swap(places[i], places[default_generator().below(uint64_t(i) + 1)]);
  return from_span<int64_t>({places, std::size_t(n)}, {n}, dtype, device);
}

}  // namespace halftone
