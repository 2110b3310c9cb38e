// Argument rules of operations by index and by order, and operations made of them.
#include <halftone/autograd/ops/index.h>

#include <algorithm>
#include <cmath>

#include <halftone/autograd/history.h>
#include <halftone/autograd/ops/logical.h>
#include <halftone/autograd/ops/reduce.h>
#include <halftone/autograd/ops/shape.h>

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

// Puts and picks elements by index, composed of gather() and scatter_add(), and picks elements by a
// mask.

namespace {
/// Returns a tensor that is smaller in some dimensions, padded with zeros to `shape`.
Tensor padded_to(const Shape& shape, const Tensor& x) {
  Dims pairs;
  for (int d = shape.rank() - 1; d >= 0; --d)
    pairs.push_back(0), pairs.push_back(shape[d] - x.shape()[d]);
  return pad(x, pairs);
}
Tensor raised(const Tensor& x) { return x.rank() == 0 ? reshape(x, {1}) : x; }

/// For each of `size` positions along a dimension: the last of the indices that name it, and
/// whether there is one.
struct LastSources {
  Tensor source, hit;
};
/// Sorted by position, equal indices stay in order: the last is followed by another one.
LastSources last_sources(const Tensor& index, int d, int64_t size) {
  const Tensor order = argsort(index, d), places = gather(index, d, order);
  const int64_t n = index.shape()[d];
  Shape one = index.shape(), reached = index.shape();
  one[d] = std::min<int64_t>(n, 1), reached[d] = size;
  const Tensor differs = slice(places, d, 0, -1) != slice(places, d, 1, n);
  const Tensor is_last = cat({differs, halftone::ones(one, boolean, index.device())}, d);
  const Tensor nothing = zeros(reached, i64, index.device());
  return {scatter_add(nothing, d, places, where(is_last, order, 0)),
          scatter_add(nothing, d, places, cast(is_last, i64)) > 0};
}

/// Returns i64 indices from 0 on. Negative ones count from the end.
Tensor wrapped(std::string_view op, const Tensor& index, int64_t size) {
  const Tensor wide = detail::wide_indices(op, "the index", index);
  const Tensor from_0 = where(wide < 0, wide + size, wide);
  const bool seen = wide.device().kind == DeviceKind::cpu && wide.numel() > 0;
  if (seen && (min(from_0).item() < 0 || max(from_0).item() >= double(size)))
    fail<UsageError>(op, "indices from ", min(wide).item<int64_t>(), " to ",
                     max(wide).item<int64_t>(), " for a dimension of size ", size,
                     ". They must be from ", -size, " to ", size - 1, ".");
  return from_0;
}

/// Returns a vector along dimension d of a tensor of a rank.
Tensor along(const Tensor& vector, int d, int rank) {
  Shape shape = Dims::filled(rank, 1);
  shape[d] = vector.numel();
  return reshape(vector, shape);
}
}  // namespace

Tensor scatter(const Tensor& x, int dim, const Tensor& index_in, const Tensor& source_in) {
  check::defined("scatter", "the input", x);
  check::defined("scatter", "the source", source_in);
  check::same_dtype("scatter", x, source_in);
  const int d = normalize_dim("scatter", dim, x.rank());
  check::integers("scatter", "the index", index_in);
  const Tensor to = raised(x), source = raised(source_in);
  const Tensor index = detail::indices_within("scatter", raised(index_in), to.shape()[d]);
  detail::reached("scatter", to, d, index.shape());
  bool fits = source.rank() == index.rank();
  for (int i = 0; fits && i < index.rank(); ++i) fits = index.shape()[i] <= source.shape()[i];
  if (!fits)
    fail<ShapeError>("scatter", "the index is ", described(index_in), ", the source ",
                     described(source_in), ". The source must be as large in every dimension.");
  if (index.numel() == 0) return x;
  const LastSources last = last_sources(index, d, to.shape()[d]);
  const Tensor picked = padded_to(to.shape(), gather(source, d, last.source));
  return reshape(where(padded_to(to.shape(), last.hit), picked, to), x.shape());
}

Tensor scatter(const Tensor& x, int dim, const Tensor& index, Number value) {
  check::defined("scatter", "the input", x);
  check::defined("scatter", "the index", index);
  return scatter(x, dim, index, views::expand(scalar(value, x.dtype(), x.device()), index.shape()));
}

Tensor index_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source,
                 Number alpha) {
  check::defined("index_add", "the input", x);
  check::defined("index_add", "the source", source);
  check::integers("index_add", "the index", index);
  check::same_dtype("index_add", x, source);
  const int d = normalize_dim("index_add", dim, x.rank());
  const Tensor to = raised(x), from = raised(source), places = raised(index);
  Shape wanted = to.shape();
  wanted[d] = places.numel();
  if (index.rank() > 1 || from.shape() != wanted)
    fail<ShapeError>("index_add", "the index is ", described(index), ", the source ",
                     described(source), ". The index must be a vector, the source ", wanted, '.');
  if (!is_floating(x.dtype()) && !alpha.whole)
    fail<UsageError>("index_add", "alpha is ", alpha.value, " for ", described(x),
                     ". Integers need a whole number. Cast to f32 for fractions.");
  Shape column = Dims::filled(to.rank(), 1);
  column[d] = places.numel();
  const Tensor scaled = alpha.value == 1 ? from : from * alpha;
  const CasterScope as_is(nullptr);  // unlike scatter_add, no casting list names index_add
  return reshape(
      scatter_add(to, d, expand(reshape(places, column), wanted), cast(scaled, x.dtype())),
      x.shape());
}

Tensor take_along_dim(const Tensor& x, const Tensor& index, std::optional<int> dim) {
  check::defined("take_along_dim", "the input", x);
  check::defined("take_along_dim", "the index", index);
  if (!dim) return take_along_dim(reshape(x, {x.numel()}), reshape(index, {index.numel()}), 0);
  if (x.rank() != index.rank())
    fail<ShapeError>("take_along_dim", "x is ", described(x), ", the index ", described(index),
                     ". They must have the same rank.");
  const int d = normalize_dim("take_along_dim", *dim, x.rank());
  Shape of_x = x.shape(), of_index = index.shape();
  if (x.rank() > 0) of_x[d] = of_index[d] = 1;
  Shape from = broadcast_shapes("take_along_dim", of_x, of_index), to = from;
  if (x.rank() > 0) from[d] = x.shape()[d], to[d] = index.shape()[d];
  const int64_t size = x.rank() == 0 ? 1 : x.shape()[d];
  return gather(expand(x, from), d, expand(wrapped("take_along_dim", index, size), to));
}

namespace {
/// Returns the indices of the nonzero elements, in row-major order, read by the host.
std::vector<int64_t> places_of_true(const Tensor& x) {
  const Tensor mask = views::contiguous(cast(x.detach(), boolean).to(Device::cpu()));
  const bool* const truth = mask.data<bool>();
  std::vector<int64_t> places;
  for (int64_t i = 0, count = mask.numel(); i < count; ++i)
    if (truth[i]) places.push_back(i);
  return places;
}
}  // namespace

Tensor nonzero(const Tensor& x) {
  check::numbers_or_bool("nonzero", x);
  std::vector<int64_t> coordinates;
  const std::vector<int64_t> places = places_of_true(x);
  const Strides steps = contiguous_strides(x.shape());
  for (const int64_t place : places)
    for (int d = 0; d < x.rank(); ++d) coordinates.push_back(place / steps[d] % x.shape()[d]);
  return from_vector(coordinates, {int64_t(places.size()), x.rank()}, i64, x.device());
}

Tensor masked_select(const Tensor& x, const Tensor& mask) {
  check::defined("masked_select", "the input", x);
  check::defined("masked_select", "the mask", mask);
  if (mask.dtype() != boolean)
    fail<DTypeError>("masked_select", "the mask must be bool, got ", described(mask),
                     ". Compare first.");
  const Shape shape = broadcast_shapes("masked_select", x.shape(), mask.shape());
  const std::vector<int64_t> places = places_of_true(views::expand(mask, shape));
  return index_select(reshape(expand(x, shape), {numel_of(shape)}), 0,
                      from_vector(places, {int64_t(places.size())}, i64, x.device()));
}

// Several index tensors: x as rows, one for each element of the indexed dimensions, and one index
// of rows.

namespace {
/// x[indices] as rows[row], reshaped to `shape` and permuted by `order`.
struct IndexedRows {
  Tensor rows, row;
  Shape shape;
  Dims order;         // of the result
  Dims moved;         // x's dimensions, the indexed ones first
  Shape moved_shape;  // x's sizes in that order
};

IndexedRows indexed_rows(std::string_view op, const Tensor& x, const std::vector<Tensor>& given) {
  check::defined(op, "the input", x);
  std::vector<Tensor> indices;  // one for a dimension, undefined for a whole one
  for (const Tensor& one : given) {
    const int at = int(indices.size());
    if (!one.defined() || one.dtype() != boolean) {
      indices.push_back(one);
      continue;
    }
    for (int d = 0; d < one.rank(); ++d)
      if (at + d >= x.rank() || one.shape()[d] != x.shape()[at + d])
        fail<ShapeError>(op, "the mask is ", described(one), " for ", described(x),
                         " from dimension ", at, " on. Its sizes must be the same.");
    const Tensor places = nonzero(one);
    for (int d = 0; d < one.rank(); ++d) indices.push_back(select(places, 1, d));
    if (one.rank() == 0)
      fail<ShapeError>(op, "the mask ", described(one), " has no dimension. Reshape it to [1].");
  }
  if (int(indices.size()) > x.rank())
    fail<ShapeError>(op, indices.size(), " dimensions are indexed, but x is ", described(x),
                     ". Give at most ", x.rank(), ".");
  Dims moved, rest;
  Shape common, rest_shape;
  for (int d = 0; d < x.rank(); ++d) {
    const bool indexed = d < int(indices.size()) && indices[std::size_t(d)].defined();
    if (!indexed) rest.push_back(d), rest_shape.push_back(x.shape()[d]);
    if (indexed)
      moved.push_back(d), common = broadcast_shapes(op, common, indices[std::size_t(d)].shape());
  }
  if (moved.empty()) fail<UsageError>(op, "got no index. Give an index tensor or a mask.");
  Tensor row = zeros({}, i64, x.device());
  Shape front;
  for (const int64_t d : moved) {
    const int64_t size = x.shape()[int(d)];
    const Tensor place = wrapped(op, indices[std::size_t(d)], size);
    row = row * size + place;
    if (moved.rank() > 1 && x.device().kind != DeviceKind::cpu)  // no other row: an error
      row = where(logical_and(place >= 0, place < size), row, -1);
    front.push_back(size);
  }
  // The dimensions of the indices replace the indexed ones, or come first if those are apart.
  const int first = moved[-1] - moved[0] == moved.rank() - 1 ? int(moved[0]) : 0;
  IndexedRows result{
      .rows = {}, .row = {}, .shape = common, .order = {}, .moved = moved, .moved_shape = front};
  for (int d = 0; d < first; ++d) result.order.push_back(common.rank() + d);
  for (int d = 0; d < common.rank(); ++d) result.order.push_back(d);
  for (int d = first; d < rest.rank(); ++d) result.order.push_back(common.rank() + d);
  for (const int64_t size : rest_shape)
    result.shape.push_back(size), result.moved_shape.push_back(size);
  for (const int64_t d : rest) result.moved.push_back(d);
  result.row = reshape(expand(row, common), {numel_of(common)});
  result.rows = reshape(permute(x, result.moved), {numel_of(front), numel_of(rest_shape)});
  return result;
}

Dims inverse(const Dims& order) {
  Dims result = order;
  for (int i = 0; i < order.rank(); ++i) result[int(order[i])] = i;
  return result;
}
}  // namespace

Tensor index(const Tensor& x, const std::vector<Tensor>& indices) {
  const IndexedRows in = indexed_rows("index", x, indices);
  return permute(reshape(index_select(in.rows, 0, in.row), in.shape), in.order);
}

Tensor index_put(const Tensor& x_in, const std::vector<Tensor>& indices, const Tensor& values_in,
                 bool accumulate) {
  check::defined("index_put", "the input", x_in);
  check::defined("index_put", "the values", values_in);
  std::vector<Tensor> inputs{x_in, values_in};
  if (InputCaster* caster = active_caster()) caster->cast_inputs(composed::index_put, inputs);
  const CasterScope as_is(nullptr);
  const Tensor &x = inputs[0], &values = inputs[1];
  check::same_dtype("index_put", x, values);
  const IndexedRows in = indexed_rows("index_put", x, indices);
  Shape result = in.shape;
  for (int d = 0; d < result.rank(); ++d) result[d] = in.shape[int(in.order[d])];
  if (broadcast_shapes("index_put", result, values.shape()) != result)
    fail<ShapeError>("index_put", "the values are ", described(values), ", x at the indices is ",
                     result, ". They must broadcast to it.");
  const Tensor sources = reshape(permute(expand(values, result), inverse(in.order)),
                                 {in.row.numel(), in.rows.shape()[1]});
  const Tensor put =
      accumulate ? index_add(in.rows, 0, in.row, sources) : index_copy(in.rows, 0, in.row, sources);
  return permute(reshape(put, in.moved_shape), inverse(in.moved));
}

Tensor index_fill(const Tensor& x, int dim, const Tensor& index, Number value) {
  check::defined("index_fill", "the input", x);
  const int d = normalize_dim("index_fill", dim, x.rank());
  const Tensor to = raised(x);
  const Tensor places = raised(wrapped("index_fill", index, to.shape()[d]));
  if (places.rank() > 1)
    fail<ShapeError>("index_fill", "the index is ", described(index), ". It must be a vector.");
  const Tensor hit = scatter_add(zeros({to.shape()[d]}, i64, x.device()), 0, places,
                                 halftone::ones(places.shape(), i64, x.device())) > 0;
  return reshape(masked_fill(to, along(hit, d, to.rank()), value), x.shape());
}

Tensor index_copy(const Tensor& x_in, int dim, const Tensor& index, const Tensor& source_in) {
  check::defined("index_copy", "the input", x_in);
  check::defined("index_copy", "the source", source_in);
  std::vector<Tensor> inputs{x_in, source_in};
  if (InputCaster* caster = active_caster()) caster->cast_inputs(composed::index_copy, inputs);
  const CasterScope as_is(nullptr);
  const Tensor x = raised(inputs[0]), source = raised(inputs[1]);
  check::same_dtype("index_copy", x, source);
  const int d = normalize_dim("index_copy", dim, x_in.rank());
  const Tensor places = raised(detail::indices_within("index_copy", index, x.shape()[d]));
  Shape wanted = x.shape();
  wanted[d] = places.numel();
  if (places.rank() > 1 || source.shape() != wanted)
    fail<ShapeError>("index_copy", "the index is ", described(index), ", the source ",
                     described(source_in), ". The index must be a vector, the source ", wanted,
                     '.');
  if (places.numel() == 0)  // a source that requires a gradient gets one
    return source.requires_grad() ? inputs[0] + sum(source) : inputs[0];
  const LastSources last = last_sources(places, 0, x.shape()[d]);
  return reshape(where(along(last.hit, d, x.rank()), index_select(source, d, last.source), x),
                 x_in.shape());
}

Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& source) {
  check::defined("masked_scatter", "the input", x);
  check::defined("masked_scatter", "the mask", mask);
  check::defined("masked_scatter", "the source", source);
  if (mask.dtype() != boolean)
    fail<DTypeError>("masked_scatter", "the mask must be bool, got ", described(mask),
                     ". Compare first.");
  check::same_dtype("masked_scatter", x, source);
  const Shape shape = broadcast_shapes("masked_scatter", x.shape(), mask.shape());
  const std::vector<int64_t> places = places_of_true(views::expand(mask, shape));
  const auto count = int64_t(places.size());
  if (count > source.numel())
    fail<ShapeError>("masked_scatter", count, " elements are masked, the source is ",
                     described(source), ". It must have as many.");
  const Tensor flat = reshape(expand(x, shape), {numel_of(shape)});
  const CasterScope as_is(nullptr);
  return reshape(index_copy(flat, 0, from_vector(places, {count}, i64, x.device()),
                            slice(reshape(source, {source.numel()}), 0, 0, count)),
                 shape);
}

namespace {
/// y = a value that was found without history, with the gradient of another computation of it.
struct WithGradientOf : UserOp {
  static constexpr OpInfo info{"scatter_reduce", CastClass::as_is, cast_reason::chooses};
  Tensor forward(const Tensor& value, const Tensor& /*recorded*/) { return value; }
  std::array<Tensor, 2> backward(const Tensor& dy) const { return {Tensor{}, dy}; }
  std::vector<Tensor> recorded_backward(const Tensor& dy, const History&) const { return {{}, dy}; }
};

/// Replaces elements of x by the largest, or smallest, of their sources; NaN wins.
Tensor extreme_sources(const Tensor& x, int d, const Tensor& index, const Tensor& source,
                       bool largest) {
  // argsort() has NaN last. The last source of each place counts in scatter().
  const bool negate = !largest && is_floating(source.dtype());
  const Tensor order = argsort(negate ? -source : source, d, !largest && !negate);
  return scatter(x, d, gather(index, d, order), gather(source, d, order));
}
/// Replaces elements of x by the product of their sources. Sorted by place, each source is
/// multiplied by those before it, of which twice as many are known in each turn.
Tensor multiplied_sources(const Tensor& x, int d, const Tensor& index, const Tensor& source) {
  const Tensor order = argsort(index, d), places = gather(index, d, order);
  Tensor y = gather(source, d, order);
  const int64_t n = index.shape()[d];
  for (int64_t known = 1; known < n; known *= 2) {
    const Tensor same = slice(places, d, known, n) == slice(places, d, 0, n - known);
    const Tensor factor = where(same, slice(y, d, 0, n - known), 1);
    y = cat({slice(y, d, 0, known), slice(y, d, known, n) * factor}, d);
  }
  return scatter(x, d, places, y);
}
}  // namespace

Tensor scatter_reduce(const Tensor& x_in, int dim, const Tensor& index_in, const Tensor& source_in,
                      ScatterReduction reduction, bool include_self) {
  check::defined("scatter_reduce", "the input", x_in);
  check::defined("scatter_reduce", "the source", source_in);
  check::same_dtype("scatter_reduce", x_in, source_in);
  check::numbers("scatter_reduce", x_in);
  const int d = normalize_dim("scatter_reduce", dim, x_in.rank());
  check::integers("scatter_reduce", "the index", index_in);
  const Tensor x = raised(x_in);
  const Tensor index = detail::indices_within("scatter_reduce", raised(index_in), x.shape()[d]);
  detail::reached("scatter_reduce", x, d, index.shape());
  Tensor source = raised(source_in);
  for (int i = 0; i < index.rank(); ++i) {
    if (source.rank() != index.rank() || index.shape()[i] > source.shape()[i])
      fail<ShapeError>("scatter_reduce", "the index is ", described(index_in), ", the source ",
                       described(source_in), ". The source must be as large in every dimension.");
    if (index.shape()[i] != source.shape()[i]) source = slice(source, i, 0, index.shape()[i]);
  }
  if (index.numel() == 0) return x_in;
  const CasterScope as_is(nullptr);
  const auto added = [&](const Tensor& to, const Tensor& from) {
    return scatter_add(to, d, index, from);
  };
  const DType wide = x.dtype() == f64 ? f64 : f32;  // bf16 counts to 256
  const Tensor ones_of_index = halftone::ones(index.shape(), i64, x.device());
  const Tensor hits = added(zeros(x.shape(), i64, x.device()), ones_of_index);
  Tensor y;
  if (reduction == ScatterReduction::prod) {
    const Tensor self = include_self ? x : where(hits > 0, 1, x);
    y = self * multiplied_sources(where(hits > 0, 1, halftone::ones_like(x)), d, index, source);
  } else if (reduction == ScatterReduction::sum || reduction == ScatterReduction::mean) {
    y = added(include_self ? x : where(hits > 0, 0, x), source);
    const Tensor count = include_self ? hits + 1 : maximum(hits, 1);
    if (reduction == ScatterReduction::mean)
      y = cast(is_floating(x.dtype()) ? y / cast(count, wide) : floor_divide(y, count), x.dtype());
  } else {
    const bool largest = reduction == ScatterReduction::amax;
    const Tensor self = x.detach(), from = source.detach();
    const Tensor top = extreme_sources(self, d, index, from, largest);
    const Tensor value = !include_self ? top : (largest ? maximum(top, self) : minimum(top, self));
    const Tensor of_self = logical_and(self == value, include_self ? hits >= 0 : hits == 0);
    const Tensor of_source = from == gather(value, d, index);
    // As PyTorch's, self counts as one of the equals although it is not included.
    const Tensor ties = added(cast(self == value, i64), cast(of_source, i64));
    y = value;
    if (is_floating(x.dtype()))
      y = apply(WithGradientOf{}, value,
                cast(added(where(of_self, x, 0), where(of_source, source, 0)) / cast(ties, wide),
                     x.dtype()));
  }
  return reshape(y, x_in.shape());
}

Tensor repeat_interleave(const Tensor& x, int64_t repeats, std::optional<int> dim) {
  check::defined("repeat_interleave", "the input", x);
  if (repeats < 0)
    fail<UsageError>("repeat_interleave", "repeats is ", repeats, ". It must not be negative.");
  const int d = dim ? normalize_dim("repeat_interleave", *dim, x.rank()) : 0;
  const Tensor from = dim ? raised(x) : reshape(x, {x.numel()});
  Shape shape = from.shape();
  shape.insert(d + 1, repeats);
  const Tensor y = expand(unsqueeze(from, d + 1), shape);
  shape.erase(d + 1);
  shape[d] = (Checked(shape[d]) * repeats).value;
  return reshape(y, shape);
}

Tensor repeat_interleave(const Tensor& x, const Tensor& repeats, std::optional<int> dim) {
  check::defined("repeat_interleave", "the input", x);
  check::integers("repeat_interleave", "repeats", repeats);
  const std::vector<int64_t> times = repeats.to_vector<int64_t>();
  if (times.size() == 1) return repeat_interleave(x, times[0], dim);
  const int d = dim ? normalize_dim("repeat_interleave", *dim, x.rank()) : 0;
  const Tensor from = dim ? raised(x) : reshape(x, {x.numel()});
  if (repeats.rank() > 1 || int64_t(times.size()) != from.shape()[d])
    fail<ShapeError>("repeat_interleave", "repeats is ", described(repeats), " for dimension ", d,
                     " of ", described(from),
                     ". Give one number for each of its elements, or one for all.");
  std::vector<int64_t> places;
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (times[i] < 0)
      fail<UsageError>("repeat_interleave", "repeats has ", times[i], ". None may be negative.");
    or_no_memory("repeat_interleave", times[i] * int64_t(sizeof(int64_t)),
                 [&] { places.insert(places.end(), std::size_t(times[i]), int64_t(i)); });
  }
  return index_select(from, d, from_vector(places, {int64_t(places.size())}, i64, x.device()));
}

namespace {
/// Appends n of the categories of a row to `drawn`.
void draw_categories(std::span<const double> row, int64_t n, bool replacement,
                     std::vector<int64_t>& drawn) {
  std::vector<double> sums;
  std::vector<std::pair<double, int64_t>> waits;  // exponential, with the probabilities as rates
  double total = 0;
  // 51 bits on (0, 1): times a total, they round to less than it.
  const auto random = [] { return (double(default_generator().next() >> 13) + 0.5) * 0x1p-51; };
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (!(row[i] >= 0 && row[i] <= facts(f64).max))
      fail<UsageError>("multinomial", "a probability is ", row[i],
                       ". It must be finite and not negative.");
    sums.push_back(total += row[i]);
    if (!replacement && row[i] > 0)
      waits.emplace_back(-elementary::log(random()) / row[i], int64_t(i));
  }
  if (!(total > 0 && total <= facts(f64).max))
    fail<UsageError>("multinomial", "the probabilities of a row add up to ", total,
                     ". The sum must be positive and finite.");
  if (!replacement && int64_t(waits.size()) < n)
    fail<UsageError>("multinomial", n, " samples without replacement from ", waits.size(),
                     " categories with a positive probability. Draw fewer.");
  std::ranges::sort(waits);
  for (int64_t k = 0; k < n; ++k)
    drawn.push_back(replacement ? std::ranges::upper_bound(sums, random() * total) - sums.begin()
                                : waits[std::size_t(k)].second);
}
}  // namespace

Tensor multinomial(const Tensor& probabilities, int64_t n, bool replacement) {
  check::floating("multinomial", probabilities);
  const int rank = probabilities.rank();
  if (rank != 1 && rank != 2)
    fail<ShapeError>("multinomial", described(probabilities), " has rank ", rank,
                     ". Give a vector, or a matrix of rows.");
  const int64_t categories = probabilities.size(-1);
  if (n < 1 || (replacement ? categories == 0 : n > categories))
    fail<UsageError>("multinomial", n, " samples of ", categories,
                     " categories. Draw at least one, from at least one, and without replacement "
                     "no more than there are.");
  const std::vector<double> values = probabilities.to_vector<double>();
  std::vector<int64_t> drawn;
  for (std::size_t row = 0; row < values.size(); row += std::size_t(categories))
    draw_categories(std::span(values).subspan(row, std::size_t(categories)), n, replacement, drawn);
  Shape shape = probabilities.shape();
  shape[-1] = n;
  return from_vector(drawn, shape, i64, probabilities.device());
}

// Operations composed of sorting and indexing: extremes with their indices, medians, quantiles,
// unique.

namespace {
/// Returns the elements at `index`, which has size 1 along dimension d.
Sorted picked(const Tensor& x, int d, const Tensor& index, bool keep) {
  const Tensor values = gather(x, d, index);
  return keep ? Sorted{values, index} : Sorted{squeeze(values, d), squeeze(index, d)};
}
Tensor flat(const Tensor& x) { return reshape(x, {x.numel()}); }
}  // namespace

Sorted max_with_indices(const Tensor& x, int dim, bool keep) {
  const Tensor index = argmax(x, dim, true);
  return picked(x, normalize_dim("max_with_indices", dim, x.rank()), index, keep);
}
Sorted min_with_indices(const Tensor& x, int dim, bool keep) {
  const Tensor index = argmin(x, dim, true);
  return picked(x, normalize_dim("min_with_indices", dim, x.rank()), index, keep);
}

Sorted median(const Tensor& x, int dim, bool keep) {
  check::numbers("median", x);
  const int d = normalize_dim("median", dim, x.rank());
  if (x.rank() == 0) return {x, zeros({}, i64, x.device())};
  detail::require_elements("median", x, {.dims = {d}});
  const int64_t n = x.shape()[d], middle = (n - 1) / 2;
  Tensor index = slice(argsort(x.detach(), d), d, middle, middle + 1);
  // NaN sorts as largest: x has NaN if the largest is NaN, and argmax() gives the first.
  if (is_floating(x.dtype()) && n > 0) {
    const Sorted largest = max_with_indices(x.detach(), d, true);
    index = where(isnan(largest.values), largest.indices, index);
  }
  return picked(x, d, index, keep);
}

Tensor median(const Tensor& x) {
  check::numbers("median", x);
  if (x.numel() == 0 && !is_floating(x.dtype()))
    fail<ShapeError>("median", described(x), " has no elements. Pass at least one.");
  if (x.numel() == 0)
    return full({}, std::numeric_limits<double>::quiet_NaN(), x.dtype(), x.device());
  const Tensor middle = median(flat(x.detach()), 0).values;
  if (!x.requires_grad()) return middle;
  // The maximum over the elements equal to the median, which share the gradient of max().
  const Tensor lowest = full({}, -std::numeric_limits<double>::infinity(), x.dtype(), x.device());
  const Tensor attains = logical_or(x.detach() == middle, isnan(x.detach()));
  return max(where(attains, x, lowest));
}

Tensor quantile(const Tensor& x, const std::vector<double>& q, std::optional<int> dim, bool keep) {
  check::defined("quantile", "the input", x);
  if (x.dtype() != f32 && x.dtype() != f64)
    fail<DTypeError>("quantile", "needs f32 or f64, got ", described(x), ". Cast it first.");
  if (x.numel() == 0)
    fail<ShapeError>("quantile", described(x), " has no elements. Pass at least one.");
  const int d = dim ? normalize_dim("quantile", *dim, x.rank()) : 0;
  const Tensor rows = dim && x.rank() > 0 ? transpose(x, d, -1) : flat(x);
  const int64_t last = rows.size(-1) - 1;
  const Tensor sorted = sort(rows, -1).values;
  const Tensor largest = slice(sorted, -1, last, last + 1);
  std::vector<Tensor> results;
  for (const double value : q) {
    if (!(value >= 0 && value <= 1))
      fail<UsageError>("quantile", "q is ", value, ". It must be on [0, 1].");
    // The position is rounded as PyTorch's, which computes it in x's dtype.
    const double place =
        x.dtype() == f64 ? value * double(last) : double(float(value) * float(last));
    const auto below = int64_t(std::floor(place)), above = int64_t(std::ceil(place));
    const Tensor y = lerp(slice(sorted, -1, below, below + 1), slice(sorted, -1, above, above + 1),
                          place - double(below));
    Tensor result = where(isnan(largest.detach()), largest, y);
    if (dim && x.rank() > 0) result = transpose(result, d, -1);
    if (dim && x.rank() > 0) results.push_back(keep ? result : squeeze(result, d));
    else results.push_back(reshape(result, keep ? Dims::filled(x.rank(), 1) : Shape{}));
  }
  return stack(results);
}
Tensor quantile(const Tensor& x, double q, std::optional<int> dim, bool keep) {
  return squeeze(quantile(x, std::vector<double>{q}, dim, keep), 0);
}

Unique unique(const Tensor& in) {
  check::numbers_or_bool("unique", in);
  const NoGrad no_grad;
  const Tensor x = flat(in.detach()), order = argsort(x, 0), sorted = gather(x, 0, order);
  const int64_t n = x.numel();
  if (n == 0) return {x, zeros(in.shape(), i64, in.device()), zeros({0}, i64, in.device())};
  const Tensor differs = slice(sorted, 0, 0, n - 1) != slice(sorted, 0, 1, n);
  const Tensor is_first = cat({ones({1}, boolean, in.device()), differs}, 0);
  const Tensor number = cumsum(is_first, 0) - 1, values = masked_select(sorted, is_first);
  const Tensor counts =
      scatter_add(zeros(values.shape(), i64, in.device()), 0, number, ones({n}, i64, in.device()));
  return {values, reshape(scatter_add(zeros_like(number), 0, order, number), in.shape()), counts};
}

// Extremes up to each place: in each pass, places look as far back as they know, then know twice
// as much.

namespace {
template <class Later> Sorted running(std::string_view op, const Tensor& x, int dim, Later later) {
  check::numbers_or_bool(op, x);
  const int d = normalize_dim(op, dim, x.rank());
  if (x.rank() == 0) return {x, zeros({}, i64, x.device())};
  const int64_t n = x.size(d);
  Shape row = Dims::filled(x.rank(), 1);
  row[d] = n;
  Tensor best = x.detach(), place = expand(reshape(arange(n, i64, x.device()), row), x.shape());
  for (int64_t known = 1; known < n; known *= 2) {
    const auto next = [&](const Tensor& of, const Tensor& here_wins) {
      const Tensor chosen = where(here_wins, slice(of, d, known, n), slice(of, d, 0, n - known));
      return cat({slice(of, d, 0, known), chosen}, d);
    };
    const Tensor here = slice(best, d, known, n);
    const Tensor here_wins = logical_or(later(here, slice(best, d, 0, n - known)), isnan(here));
    place = next(place, here_wins), best = next(best, here_wins);
  }
  return {gather(x, d, place), place};
}
}  // namespace

Sorted cummax(const Tensor& x, int dim) {
  return running("cummax", x, dim, [](const Tensor& a, const Tensor& b) { return a >= b; });
}
Sorted cummin(const Tensor& x, int dim) {
  return running("cummin", x, dim, [](const Tensor& a, const Tensor& b) { return a <= b; });
}

// Counts, and places in sorted sequences.

Tensor bincount(const Tensor& x, const Tensor& weights, int64_t minlength) {
  check::numbers("bincount", x);
  if (x.rank() != 1 || is_floating(x.dtype()))
    fail<UsageError>("bincount", "the input is ", described(x),
                     ". It must be a vector of integers. Flatten or cast it.");
  if (minlength < 0) fail<UsageError>("bincount", "minlength is ", minlength, ". Use 0 or more.");
  if (weights.defined() && weights.shape() != x.shape())
    fail<ShapeError>("bincount", "the weights are ", described(weights), " for ", described(x),
                     ". Pass one for each element.");
  if (x.numel() == 0) return zeros({minlength}, i64, x.device());
  const NoGrad no_grad;
  const Tensor index = cast(x.detach(), i64);
  if (const auto least = min(index).item<int64_t>(); least < 0)
    fail<UsageError>("bincount", "an element is ", least, ". Only numbers from 0 are counted.");
  const int64_t bins = std::max(minlength, max(index).item<int64_t>() + 1);
  const DType dtype = !weights.defined() ? i64 : weights.dtype() == f32 ? f32 : f64;
  const Tensor terms =
      weights.defined() ? cast(weights.detach(), dtype) : ones(x.shape(), dtype, x.device());
  return scatter_add(zeros({bins}, dtype, x.device()), 0, index, terms);
}

Tensor histc(const Tensor& in, int64_t bins, double low, double high) {
  check::floating("histc", in);
  if (bins < 1) fail<UsageError>("histc", "bins is ", bins, ". Use 1 or more.");
  const NoGrad no_grad;
  const CasterScope no_cast(nullptr);
  const Tensor x = cast(flat(in.detach()), in.dtype() == f64 ? f64 : f32);
  if (low == high && x.numel() > 0) low = min(x).item(), high = max(x).item();
  if (!std::isfinite(low) || !std::isfinite(high))
    fail<UsageError>("histc", "the range is ", low, " to ", high, ". It must be finite.");
  if (low > high)
    fail<UsageError>("histc", "low is ", low, ", high is ", high, ". Use low <= high.");
  if (low == high) low -= 1, high += 1;
  const auto number = [&](double value) { return scalar(value, x.dtype(), x.device()); };
  // In the order of PyTorch's roundings. The last bin has its upper end as well.
  const Tensor place = (x - number(low)) * number(double(bins)) / number(high - low);
  const Tensor inside = logical_and(x >= low, x <= high);
  const Tensor bin = minimum(cast(where(inside, place, 0), i64), bins - 1);
  const Tensor counts = scatter_add(zeros({bins}, f64, x.device()), 0, bin, cast(inside, f64));
  return cast(counts, in.dtype());
}

/// Halves a step: a value comes after the element at the end of the step if this element is
/// smaller, or for `right` not larger.
Tensor searchsorted(const Tensor& sorted, const Tensor& values, bool right) {
  const std::string_view op = "searchsorted";
  check::numbers_or_bool(op, sorted);
  check::numbers_or_bool(op, values);
  if (sorted.rank() == 0)
    fail<ShapeError>(op, "the sorted sequence is a scalar. Pass a vector or more dimensions.");
  Shape expected = sorted.shape();
  if (sorted.rank() > 1 && values.rank() == sorted.rank()) expected[-1] = values.size(-1);
  if (sorted.rank() > 1 && values.shape() != expected)
    fail<ShapeError>(op, "the sorted sequences are ", described(sorted), ", the values ",
                     described(values), ". All dimensions but the last must agree.");
  const NoGrad no_grad;
  const Tensor x = sorted.rank() == 1 ? flat(values.detach()) : values.detach();
  const int64_t n = sorted.size(-1);
  int64_t step = 1;
  while (step * 2 <= n) step *= 2;
  Tensor place = zeros(x.shape(), i64, x.device());
  for (; step > 0 && n > 0; step /= 2) {
    const Tensor next = place + step;
    const Tensor end = gather(sorted.detach(), -1, clamp(next - 1, 0, n - 1));
    const Tensor stays = logical_or(next > n, right ? end > x : end >= x);
    place = where(stays, place, next);
  }
  return reshape(place, values.shape());
}

Tensor bucketize(const Tensor& x, const Tensor& boundaries, bool right) {
  check::rank("bucketize", "the vector of boundaries", boundaries, 1);
  return searchsorted(boundaries, x, right);
}

}  // namespace halftone
