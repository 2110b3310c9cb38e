// The stride arithmetic of views.
#include <halftone/core/views.h>

#include <algorithm>
#include <cstdlib>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/in_place.h>

namespace halftone {

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
