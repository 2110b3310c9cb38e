// Argument rules of the shape operations: negative dimensions, -1 sizes, bounds.
#include <halftone/autograd/ops/shape.h>

#include <halftone/autograd/ops/cast.h>
#include <halftone/core/error.h>

namespace halftone {

Tensor reshape(const Tensor& x, Shape shape) {
  check::defined("reshape", "the input", x);
  int unknown = -1;
  Shape known{};
  for (int i = 0; i < shape.rank(); ++i) {
    if (shape[i] == -1 && unknown < 0) unknown = i;
    else known.push_back(shape[i]);
  }
  const int64_t count = numel_of(known);
  if (unknown >= 0 && count == 0)
    fail<ShapeError>("reshape", described(x), " to ", shape,
                     ": with a size of 0, -1 could be any size. Give it.");
  if (unknown >= 0) shape[unknown] = x.numel() / count;
  if (numel_of(shape) != x.numel())
    fail<ShapeError>("reshape", described(x), " does not fit shape ", shape,
                     ". Element counts must agree.");
  return shape == x.shape() ? x : apply(Reshape{.to = shape}, x);
}

Tensor flatten(const Tensor& x, int start, int end) {
  check::defined("flatten", "the input", x);
  const int first = normalize_dim("flatten", start, x.rank()),
            last = normalize_dim("flatten", end, x.rank());
  if (first > last)
    fail<ShapeError>("flatten", "start ", start, " is after end ", end, " for rank ", x.rank(),
                     ". Swap them.");
  Shape shape;
  Checked merged = 1;
  for (int i = 0; i < x.rank(); ++i) {
    if (i < first || i > last) shape.push_back(x.shape()[i]);
    else merged = merged * x.shape()[i];
    if (i == last) shape.push_back(merged.value);
  }
  if (merged.overflowed)
    fail<ShapeError>("flatten", "too many elements in ", described(x),
                     ". Flatten fewer dimensions.");
  if (x.rank() == 0) shape = {1};
  return reshape(x, shape);
}

Tensor permute(const Tensor& x, const Dims& order) {
  check::defined("permute", "the input", x);
  Dims normalized = order, seen = Dims::filled(x.rank(), 0);
  bool valid = order.rank() == x.rank();
  for (int i = 0; valid && i < order.rank(); ++i) {
    normalized[i] = normalize_dim("permute", order[i], x.rank());
    valid = seen[int(normalized[i])]++ == 0;
  }
  if (!valid)
    fail<ShapeError>("permute", "order ", order, " for ", described(x),
                     ". Name each dimension exactly once.");
  return apply(Permute{normalized}, x);
}

Tensor transpose(const Tensor& x, int a, int b) {
  check::defined("transpose", "the input", x);
  Dims order;
  for (int i = 0; i < x.rank(); ++i) order.push_back(i);
  if (x.rank() == 0) return x;
  std::swap(order[normalize_dim("transpose", a, x.rank())],
            order[normalize_dim("transpose", b, x.rank())]);
  return apply(Permute{order}, x);
}

Tensor expand(const Tensor& x, Shape shape) {
  check::defined("expand", "the input", x);
  const int extra = shape.rank() - x.rank();
  bool fits = extra >= 0;
  for (int i = 0; fits && i < shape.rank(); ++i) {
    const int64_t old = i < extra ? 1 : x.shape()[i - extra];
    if (shape[i] == -1 && i >= extra) shape[i] = old;
    fits = shape[i] >= 0 && (old == 1 || old == shape[i]);
  }
  if (!fits)
    fail<ShapeError>("expand", described(x), " does not expand to ", shape,
                     ". Only sizes of 1 can grow.");
  if ((Checked(numel_of(shape)) * size_of(x.dtype())).overflowed)
    fail<ShapeError>("expand", "too many bytes for ", shape, ' ', x.dtype(),
                     ". Use a smaller shape.");
  return shape == x.shape() ? x : apply(Expand{.to = shape}, x);
}

Tensor slice(const Tensor& x, int dim, int64_t start, int64_t end, int64_t step) {
  check::defined("slice", "the input", x);
  if (x.rank() == 0) fail<ShapeError>("slice", "a scalar has no dimensions. Reshape it to [1].");
  const int d = normalize_dim("slice", dim, x.rank());
  if (step < 1) fail<UsageError>("slice", "step is ", step, ". It must be at least 1.");
  const int64_t size = x.shape()[d];
  const auto bound = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  const int64_t first = bound(start), last = bound(end);
  const int64_t count = first < last ? 1 + (last - first - 1) / step : 0;
  return apply(Slice{.dim = d, .start = first, .count = count, .step = step}, x);
}

Tensor select(const Tensor& x, int dim, int64_t index) {
  check::defined("select", "the input", x);
  const int d = normalize_dim("select", dim, x.rank());
  const int64_t size = x.rank() ? x.shape()[d] : 0;
  if (index < -size || index >= size)
    fail<ShapeError>("select", "index ", index, " is out of range for dimension ", d, " of ",
                     described(x), ". Use ", -size, " to ", size - 1, ".");
  const int64_t i = index < 0 ? index + size : index;
  return squeeze(slice(x, d, i, i + 1), d);
}

Tensor squeeze(const Tensor& x) {
  check::defined("squeeze", "the input", x);
  Shape shape;
  for (const int64_t size : x.shape())
    if (size != 1) shape.push_back(size);
  return reshape(x, shape);
}

Tensor squeeze(const Tensor& x, int dim) {
  check::defined("squeeze", "the input", x);
  const int d = normalize_dim("squeeze", dim, x.rank());
  if (x.rank() == 0 || x.shape()[d] != 1) return x;
  Shape shape = x.shape();
  shape.erase(d);
  return reshape(x, shape);
}

Tensor unsqueeze(const Tensor& x, int dim) {
  check::defined("unsqueeze", "the input", x);
  const int d = normalize_dim("unsqueeze", dim, x.rank() + 1);
  Shape shape = x.shape();
  shape.insert(d, 1);
  return reshape(x, shape);
}

Tensor cat(const std::vector<Tensor>& inputs, int dim) {
  if (inputs.empty()) fail<UsageError>("cat", "got no input. Pass at least one tensor.");
  for (const Tensor& x : inputs) check::defined("cat", "an input", x);
  if (inputs[0].rank() == 0)
    fail<ShapeError>("cat", "scalars have no dimension to join along. Use stack().");
  DType common = inputs[0].dtype();
  for (const Tensor& x : inputs) common = promote(common, x.dtype());
  std::vector<Tensor> promoted;
  promoted.reserve(inputs.size());
  for (const Tensor& x : inputs) promoted.push_back(cast(x, common));
  return apply(Cat{.dim = normalize_dim("cat", dim, inputs[0].rank())}, std::move(promoted));
}

Tensor stack(const std::vector<Tensor>& inputs, int dim) {
  if (inputs.empty()) fail<UsageError>("stack", "got no input. Pass at least one tensor.");
  std::vector<Tensor> raised;
  for (const Tensor& x : inputs) {
    check::defined("stack", "an input", x);
    if (x.shape() != inputs[0].shape())
      fail<ShapeError>("stack", "inputs are ", described(inputs[0]), " and ", described(x),
                       ". Shapes must agree.");
    raised.push_back(unsqueeze(x, dim));
  }
  return cat(raised, dim);
}

namespace detail {

Padding padding_of(const Tensor& x, const Dims& pairs_from_last) {
  check::defined("pad", "the input", x);
  Padding padding{Dims::filled(x.rank(), 0), Dims::filled(x.rank(), 0)};
  constexpr int64_t most = int64_t(1) << 40;  // so that sizes stay integers
  bool fits = pairs_from_last.rank() % 2 == 0 && pairs_from_last.rank() / 2 <= x.rank();
  for (int i = 0; fits && i < pairs_from_last.rank() / 2; ++i) {
    const int64_t before = pairs_from_last[2 * i], after = pairs_from_last[2 * i + 1];
    const int d = x.rank() - 1 - i;
    padding.before[d] = before, padding.after[d] = after;
    fits = fits && before >= -most && before <= most && after >= -most && after <= most &&
           x.shape()[d] + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0) >= 0;
  }
  if (!fits)
    fail<ShapeError>("pad", "padding ", pairs_from_last, " for ", described(x),
                     ". Give pairs (before, after) from the last dimension backwards; negative "
                     "ones cut away no more than there is.");
  return padding;
}

Tensor cropped(const Tensor& x, Padding& padding) {
  Tensor part = x;
  for (int d = 0; d < x.rank(); ++d) {
    int64_t &before = padding.before[d], &after = padding.after[d];
    if (before < 0 || after < 0)
      part = slice(part, d, std::max<int64_t>(-before, 0),
                   x.shape()[d] - std::max<int64_t>(-after, 0));
    before = std::max<int64_t>(before, 0), after = std::max<int64_t>(after, 0);
  }
  return part;
}

}  // namespace detail

Tensor pad(const Tensor& x, const Dims& pairs_from_last, Number value) {
  detail::Padding padding = detail::padding_of(x, pairs_from_last);
  const Tensor part = detail::cropped(x, padding);
  return apply(Pad{.before = padding.before, .after = padding.after, .value = value}, part);
}

Tensor contiguous(const Tensor& x) {
  check::defined("contiguous", "the input", x);
  return x.is_contiguous() ? x : apply(Contiguous{}, x);
}

}  // namespace halftone
