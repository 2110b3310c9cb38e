// Puts and picks elements by index, composed of gather() and scatter_add(), and picks elements by a
// mask.
#include <halftone/autograd/ops/index.h>
#include <halftone/autograd/ops/rearrange.h>
#include <halftone/autograd/ops/sort.h>

namespace halftone {

namespace {
/// Returns a tensor that is smaller in some dimensions, padded with zeros to `shape`.
Tensor padded_to(const Shape& shape, const Tensor& x) {
  Dims pairs;
  for (int d = shape.rank() - 1; d >= 0; --d)
    pairs.push_back(0), pairs.push_back(shape[d] - x.shape()[d]);
  return pad(x, pairs);
}
Tensor raised(const Tensor& x) { return x.rank() == 0 ? reshape(x, {1}) : x; }
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
  // The last source of each position: sorted by position they stay in order; the next one differs.
  const Tensor order = argsort(index, d), places = gather(index, d, order);
  const int64_t n = index.shape()[d];
  Shape one = index.shape(), reached = index.shape();
  one[d] = 1, reached[d] = to.shape()[d];
  const Tensor differs = slice(places, d, 0, n - 1) != slice(places, d, 1, n);
  const Tensor is_last = cat({differs, halftone::ones(one, boolean, x.device())}, d);
  const Tensor nothing = zeros(reached, i64, x.device());
  const Tensor winner = scatter_add(nothing, d, places, where(is_last, order, 0));
  const Tensor hit = scatter_add(nothing, d, places, cast(is_last, i64)) > 0;
  const Tensor picked = padded_to(to.shape(), gather(source, d, winner));
  return reshape(where(padded_to(to.shape(), hit), picked, to), x.shape());
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
  if (!dim) return gather(reshape(x, {x.numel()}), 0, reshape(index, {index.numel()}));
  if (x.rank() != index.rank())
    fail<ShapeError>("take_along_dim", "x is ", described(x), ", the index ", described(index),
                     ". They must have the same rank.");
  const int d = normalize_dim("take_along_dim", *dim, x.rank());
  Shape of_x = x.shape(), of_index = index.shape();
  if (x.rank() > 0) of_x[d] = of_index[d] = 1;
  Shape from = broadcast_shapes("take_along_dim", of_x, of_index), to = from;
  if (x.rank() > 0) from[d] = x.shape()[d], to[d] = index.shape()[d];
  return gather(expand(x, from), d, expand(index, to));
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

}  // namespace halftone
