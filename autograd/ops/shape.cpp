// Argument rules of the shape operations: negative dimensions, -1 sizes, bounds.
#include <halftone/autograd/ops/shape.h>

#include <algorithm>

#include <halftone/autograd/ops/cast.h>
#include <halftone/autograd/ops/elementwise.h>
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

Tensor slice(const Tensor& x, int dim, std::optional<int64_t> start, std::optional<int64_t> end,
             int64_t step) {
  check::defined("slice", "the input", x);
  if (x.rank() == 0) fail<ShapeError>("slice", "a scalar has no dimensions. Reshape it to [1].");
  const int d = normalize_dim("slice", dim, x.rank());
  if (step < 1) fail<UsageError>("slice", "step is ", step, ". It must be at least 1.");
  const int64_t size = x.shape()[d];
  const auto bound = [&](int64_t i) { return std::clamp<int64_t>(i < 0 ? i + size : i, 0, size); };
  const int64_t first = bound(start.value_or(0)), last = bound(end.value_or(size));
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

// Argument rules of functions that rearrange, and functions composed of slices.

Tensor flip(const Tensor& x, const Dims& dims) {
  check::defined("flip", "the input", x);
  Dims normalized = dims, seen = Dims::filled(x.rank(), 0);
  for (int64_t& dim : normalized) {
    dim = normalize_dim("flip", dim, x.rank());
    if (x.rank() > 0 && seen[int(dim)]++ > 0)
      fail<ShapeError>("flip", "dimension ", dim, " is given twice in ", dims, ". Name each once.");
  }
  return x.rank() == 0 ? x : apply(Flip{normalized}, x);
}

std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int dim) {
  check::defined("split", "the input", x);
  if (x.rank() == 0) fail<ShapeError>("split", "a scalar has no dimensions. Reshape it to [1].");
  const int d = normalize_dim("split", dim, x.rank());
  std::vector<Tensor> parts;
  int64_t start = 0;
  for (const int64_t size : sizes) {
    if (size < 0 || size > x.shape()[d] - start) break;
    parts.push_back(slice(x, d, start, start + size));
    start += size;
  }
  if (parts.size() != sizes.size() || start != x.shape()[d])
    fail<ShapeError>("split", sizes.size(), " sizes for dimension ", d, " of ", described(x),
                     ". None may be negative, and they must add up to ", x.shape()[d], ".");
  return parts;
}

std::vector<Tensor> split(const Tensor& x, int64_t size, int dim) {
  check::defined("split", "the input", x);
  if (x.rank() == 0) fail<ShapeError>("split", "a scalar has no dimensions. Reshape it to [1].");
  int64_t left = x.shape()[normalize_dim("split", dim, x.rank())];
  if (size < 0 || (size == 0 && left > 0))
    fail<UsageError>("split", "the size is ", size, " for ", described(x), ". Use 1 or more.");
  std::vector<int64_t> sizes;
  do {
    sizes.push_back(std::min(size, left));
    left -= sizes.back();
  } while (left > 0);
  return split(x, sizes, dim);
}

std::vector<Tensor> chunk(const Tensor& x, int64_t count, int dim) {
  check::defined("chunk", "the input", x);
  if (x.rank() == 0) fail<ShapeError>("chunk", "a scalar has no dimensions. Reshape it to [1].");
  const int64_t size = x.shape()[normalize_dim("chunk", dim, x.rank())];
  constexpr int64_t most_of_nothing = 1 << 16;
  if (count < 1 || (size == 0 && count > most_of_nothing))
    fail<UsageError>("chunk", "the number of chunks is ", count, " for ", described(x),
                     ". Use 1 or more.");
  if (size == 0) return split(x, std::vector<int64_t>(std::size_t(count), 0), dim);
  return split(x, (size - 1) / count + 1, dim);
}

namespace {

/// Returns 1, 2, ..., n, made on x's device.
Tensor count_to(int64_t n, const Tensor& x) {
  Tensor places = ones({n}, i64, x.device()), y = empty({n}, i64, x.device());
  backend_for(x).cumulative_sum(places, false, y);
  return y;
}

/// Returns (column - row) of each element of x's matrices.
Tensor diagonals_of(std::string_view op, const Tensor& x) {
  check::defined(op, "the input", x);
  if (x.rank() < 2)
    fail<ShapeError>(op, described(x), " has rank ", x.rank(),
                     ". It must have rows and columns. Reshape it.");
  const int64_t rows = x.size(-2), columns = x.size(-1);
  return sub(count_to(columns, x), reshape(count_to(rows, x), {rows, 1}));
}

/// Returns x with `before` and `after` more elements in one dimension.
Tensor padded(const Tensor& x, int d, int64_t before, int64_t after, PadMode mode) {
  const int64_t n = x.shape()[d];
  const int64_t most = mode == PadMode::reflect ? n - 1 : n;
  const bool limited = mode != PadMode::replicate;
  if (n == 0 || (limited && (before > most || after > most)))
    fail<ShapeError>("pad", before, " before and ", after, " after dimension ", d, " of ",
                     described(x), ". This mode adds at most ", limited ? most : 0,
                     limited ? "." : " to nothing.");
  const auto part = [&](int64_t start, int64_t end) { return slice(x, d, start, end); };
  const auto repeated = [&](const Tensor& one, int64_t times) {
    Shape shape = x.shape();
    shape[d] = times;
    return expand(one, shape);
  };
  Tensor left, right;
  if (mode == PadMode::reflect) {
    left = flip(part(1, before + 1), {d}), right = flip(part(n - 1 - after, n - 1), {d});
  } else if (mode == PadMode::replicate) {
    left = repeated(part(0, 1), before), right = repeated(part(n - 1, n), after);
  } else {
    left = part(n - before, n), right = part(0, after);
  }
  return cat({left, x, right}, d);
}

}  // namespace

Tensor tril(const Tensor& x, int64_t diagonal) {
  const Tensor kept = diagonals_of("tril", x) <= diagonal;
  return where(kept, x, scalar(0, x.dtype(), x.device()));
}
Tensor triu(const Tensor& x, int64_t diagonal) {
  const Tensor kept = diagonals_of("triu", x) >= diagonal;
  return where(kept, x, scalar(0, x.dtype(), x.device()));
}

Tensor pad(const Tensor& x, const Dims& pairs_from_last, PadMode mode) {
  detail::Padding padding = detail::padding_of(x, pairs_from_last);
  Tensor y = detail::cropped(x, padding);
  for (int d = 0; d < x.rank(); ++d)
    if (padding.before[d] > 0 || padding.after[d] > 0)
      y = padded(y, d, padding.before[d], padding.after[d], mode);
  return y;
}

Tensor tile(const Tensor& x, const Dims& times) {
  check::defined("tile", "the input", x);
  Shape shape = x.shape();
  for (int i = x.rank(); i < times.rank(); ++i) shape.insert(0, 1);
  Tensor y = reshape(x, shape);
  for (int i = 0; i < times.rank(); ++i) {
    const int d = shape.rank() - times.rank() + i;
    if (times[i] < 0) fail<UsageError>("tile", "repeats ", times, ". None may be negative.");
    if (times[i] == 1) continue;
    int64_t before = 1, inside = 1;
    for (int k = 0; k < shape.rank(); ++k) (k < d ? before : inside) *= y.shape()[k];
    shape[d] *= times[i];
    y = reshape(expand(reshape(y, {before, 1, inside}), {before, times[i], inside}), shape);
  }
  return y;
}

Tensor roll(const Tensor& x, const Dims& shifts, const Dims& dims) {
  check::defined("roll", "the input", x);
  if (dims.empty() && shifts.rank() == 1)
    return reshape(roll(reshape(x, {x.numel()}), shifts, {0}), x.shape());
  if (dims.rank() != shifts.rank() || x.rank() == 0)
    fail<UsageError>("roll", "shifts ", shifts, " for dimensions ", dims, " of ", described(x),
                     ". Give one shift per dimension.");
  Tensor y = x;
  for (int i = 0; i < dims.rank(); ++i) {
    const int d = normalize_dim("roll", dims[i], x.rank());
    const int64_t n = x.shape()[d], by = n == 0 ? 0 : ((shifts[i] % n) + n) % n;
    if (by != 0) y = cat({slice(y, d, n - by, n), slice(y, d, 0, n - by)}, d);
  }
  return y;
}

Tensor diagonal(const Tensor& x, int64_t offset, int dim1, int dim2) {
  check::defined("diagonal", "the input", x);
  const int row = normalize_dim("diagonal", dim1, x.rank()),
            column = normalize_dim("diagonal", dim2, x.rank());
  if (row == column || x.rank() < 2)
    fail<ShapeError>("diagonal", "dimensions ", dim1, " and ", dim2, " of ", described(x),
                     ". Name two different ones.");
  Dims order;
  Shape shape;
  for (int i = 0; i < x.rank(); ++i)
    if (i != row && i != column) order.push_back(i), shape.push_back(x.shape()[i]);
  order.push_back(row), order.push_back(column);
  const int64_t m = x.shape()[row], n = x.shape()[column];
  const int64_t count =
      offset < 0 ? std::min(m + std::max(offset, -m), n) : std::min(m, n - std::min(offset, n));
  // In the flat matrix, elements of the diagonal are n + 1 apart.
  const int64_t first = offset < 0 ? -offset * n : offset, end = first + (count - 1) * (n + 1) + 1;
  shape.push_back(m * n);
  return slice(reshape(permute(x, order), shape), -1, count > 0 ? first : 0, count > 0 ? end : 0,
               n + 1);
}

std::vector<Tensor> meshgrid(const std::vector<Tensor>& x, std::string_view indexing) {
  if (indexing != "ij" && indexing != "xy")
    fail<UsageError>("meshgrid", "indexing is \"", indexing, "\". Use \"ij\" or \"xy\".");
  if (x.empty()) fail<UsageError>("meshgrid", "got no input. Pass at least one tensor.");
  Shape grid;
  for (const Tensor& one : x) {
    check::defined("meshgrid", "an input", one);
    if (one.rank() > 1 || one.dtype() != x[0].dtype())
      fail<ShapeError>("meshgrid", "inputs are ", described(x[0]), " and ", described(one),
                       ". They must be vectors or numbers of one dtype.");
    grid.push_back(one.numel());
  }
  std::vector<Tensor> coordinates;
  for (std::size_t i = 0; i < x.size(); ++i) {
    Shape along = Dims::filled(grid.rank(), 1);
    along[int(i)] = x[i].numel();
    const Tensor y = expand(reshape(x[i], along), grid);
    coordinates.push_back(indexing == "xy" && x.size() > 1 ? transpose(y, 0, 1) : y);
  }
  return coordinates;
}

Tensor pixel_shuffle(const Tensor& x, int64_t factor) {
  check::defined("pixel_shuffle", "the input", x);
  const int64_t square = factor * factor;
  if (x.rank() < 3 || factor < 1 || factor > 1 << 20 || x.size(-3) % square != 0)
    fail<ShapeError>("pixel_shuffle", described(x), " with a factor of ", factor,
                     ". The input must be [.., c, h, w] with c divisible by the factor's square.");
  const int64_t h = x.size(-2), w = x.size(-1), c = x.size(-3) / square;
  Shape shape = x.shape();
  int64_t images = 1;
  for (int i = 0; i < x.rank() - 3; ++i) images *= x.shape()[i];
  shape[x.rank() - 3] = c, shape[x.rank() - 2] = h * factor, shape[x.rank() - 1] = w * factor;
  return reshape(permute(reshape(x, {images, c, factor, factor, h, w}), {0, 1, 4, 2, 5, 3}), shape);
}

Tensor pixel_unshuffle(const Tensor& x, int64_t factor) {
  check::defined("pixel_unshuffle", "the input", x);
  if (x.rank() < 3 || factor < 1 || factor > 1 << 20 || x.size(-2) % factor != 0 ||
      x.size(-1) % factor != 0)
    fail<ShapeError>("pixel_unshuffle", described(x), " with a factor of ", factor,
                     ". The input must be [.., c, h, w] with h and w divisible by the factor.");
  const int64_t h = x.size(-2) / factor, w = x.size(-1) / factor, c = x.size(-3);
  Shape shape = x.shape();
  int64_t images = 1;
  for (int i = 0; i < x.rank() - 3; ++i) images *= x.shape()[i];
  shape[-3] = c * factor * factor, shape[-2] = h, shape[-1] = w;
  return reshape(permute(reshape(x, {images, c, h, factor, w, factor}), {0, 1, 3, 5, 2, 4}), shape);
}

std::vector<Tensor> unbind(const Tensor& x, int dim) {
  check::defined("unbind", "the input", x);
  if (x.rank() == 0) fail<ShapeError>("unbind", "a scalar has no dimensions. Reshape it to [1].");
  const int d = normalize_dim("unbind", dim, x.rank());
  std::vector<Tensor> parts;
  for (int64_t i = 0; i < x.shape()[d]; ++i) parts.push_back(select(x, d, i));
  return parts;
}

Tensor movedim(const Tensor& x, const Dims& from, const Dims& to) {
  check::defined("movedim", "the input", x);
  Dims order = Dims::filled(x.rank(), -1), moved = Dims::filled(x.rank(), 0);
  bool valid = from.rank() == to.rank();
  for (int i = 0; valid && x.rank() > 0 && i < from.rank(); ++i) {
    const int source = normalize_dim("movedim", from[i], x.rank());
    int64_t& place = order[normalize_dim("movedim", to[i], x.rank())];
    valid = place == -1 && moved[source]++ == 0;
    place = source;
  }
  if (!valid)
    fail<ShapeError>("movedim", "dimensions ", from, " to ", to, " of ", described(x),
                     ". Give each of them one place of its own.");
  int next = 0;
  for (int64_t& place : order) {
    if (place >= 0) continue;
    while (moved[next] != 0) ++next;
    place = next++;
  }
  return permute(x, order);
}

Tensor unflatten(const Tensor& x, int dim, const Shape& sizes) {
  check::defined("unflatten", "the input", x);
  if (x.rank() == 0)
    fail<ShapeError>("unflatten", "a scalar has no dimensions. Reshape it to [1].");
  const int d = normalize_dim("unflatten", dim, x.rank());
  Shape shape = x.shape();
  int64_t known = 1;
  for (const int64_t size : sizes)
    if (size != -1) known = (Checked(known) * size).value;
  const bool inferred = std::ranges::count(sizes, -1) == 1;
  if (sizes.empty() || std::ranges::count(sizes, -1) > 1 || (inferred && known == 0) ||
      (inferred ? shape[d] % known != 0 : shape[d] != known))
    fail<ShapeError>("unflatten", "dimension ", d, " of ", described(x), " to ", sizes,
                     ". The sizes must multiply to ", shape[d], "; one of them may be -1.");
  shape.erase(d);
  for (int i = sizes.rank() - 1; i >= 0; --i)
    shape.insert(d, sizes[i] == -1 ? x.shape()[d] / known : sizes[i]);
  return reshape(x, shape);
}

Tensor hstack(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> raised;
  for (const Tensor& x : inputs) {
    check::defined("hstack", "an input", x);
    raised.push_back(x.rank() == 0 ? reshape(x, {1}) : x);
  }
  return cat(raised, !raised.empty() && raised[0].rank() > 1 ? 1 : 0);
}
Tensor vstack(const std::vector<Tensor>& inputs) {
  std::vector<Tensor> raised;
  for (const Tensor& x : inputs) {
    check::defined("vstack", "an input", x);
    raised.push_back(x.rank() < 2 ? reshape(x, {1, x.numel()}) : x);
  }
  return cat(raised, 0);
}

}  // namespace halftone
