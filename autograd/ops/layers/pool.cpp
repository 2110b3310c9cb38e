// Shapes and checks of pooling.
#include <halftone/autograd/ops/layers/pool.h>

#include <limits>

#include <halftone/autograd/ops/sort.h>

namespace halftone {

namespace detail {
namespace {
/// Returns the distance from the first element of a window through the last.
int64_t span_of(const PoolGeometry& g, std::size_t d) {
  return (g.kernel[d] - 1) * g.dilation[d] + 1;
}
}  // namespace

PoolGeometry pool_geometry(std::string_view op, const PoolOptions& options) {
  const PoolGeometry g{options.kernel.array(), options.stride.value_or(options.kernel).array(),
                       options.padding.array(), options.count_include_pad,
                       options.dilation.array()};
  constexpr int64_t most = std::numeric_limits<int32_t>::max();  // limit of libraries
  for (std::size_t d : {0u, 1u}) {
    bool valid = g.padding[d] >= 0;
    for (const int64_t size : {g.kernel[d], g.stride[d], g.dilation[d]})
      valid = valid && size >= 1 && size <= most;
    if (!valid || g.padding[d] > g.kernel[d] / 2)
      fail<UsageError>(
          op, "kernel ", g.kernel[d], ", stride ", g.stride[d], ", padding ", g.padding[d],
          ", dilation ", g.dilation[d],
          ". All but padding must be at least 1 and below 2^31, padding at most half the "
          "kernel.");
  }
  return g;
}

Shape pooled_shape(std::string_view op, const Tensor& x, const PoolGeometry& g, bool ceil_mode) {
  check::rank(op, "x", x, 4);
  check::floating(op, x);
  Shape shape = x.shape();
  for (int i : {0, 1}) {
    const auto d = std::size_t(i);
    const int64_t in = x.shape()[2 + i], room = in + 2 * g.padding[d] - span_of(g, d);
    int64_t& out = shape[2 + i];
    out = math::floor_quotient(room + (ceil_mode ? g.stride[d] - 1 : 0), g.stride[d]) + 1;
    if (ceil_mode && (out - 1) * g.stride[d] >= in + g.padding[d]) --out;
    out = std::max<int64_t>(out, 0);
  }
  if (shape[2] < 1 || shape[3] < 1)
    fail<ShapeError>(op, "the output would be ", shape, " for x ", described(x),
                     ". Use a smaller kernel.");
  return shape;
}
}  // namespace detail

/// With ceil_mode the border is made explicit, so that the last windows count only their part of
/// it: kernels count a window's elements inside the image, or all of them.
Tensor AvgPool2d::forward(const Tensor& in) {
  const Shape pooled = detail::pooled_shape("avg_pool2d", in, geometry, ceil_mode);
  Tensor x = in;
  if (ceil_mode && geometry.count_padding) {
    border = {geometry.padding[0], geometry.padding[1]};
    const Dims sides{0, 0, border.height, border.width};
    x = Pad{.before = sides, .after = sides, .value = 0}.forward(in);
    geometry.padding = {0, 0}, geometry.count_padding = false;
  }
  shape = x.shape();
  Tensor y = empty_channels_last(pooled, x.dtype(), x.device());
  backend_for(x).avg_pool(views::channels_last(x), geometry, y);
  return y;
}

Tensor AdaptiveAvgPool2d::forward(const Tensor& x) {
  check::rank("adaptive_avg_pool2d", "x", x, 4);
  check::floating("adaptive_avg_pool2d", x);
  const bool an_image = x.size(1) > 0 && x.size(2) > 0 && x.size(3) > 0;
  if (output.height < 1 || output.width < 1 || !an_image)
    fail<ShapeError>("adaptive_avg_pool2d", "output ", output.height, " x ", output.width, " of ",
                     described(x), ". Both must have elements.");
  shape = x.shape();
  Tensor y =
      empty_channels_last({shape[0], shape[1], output.height, output.width}, x.dtype(), x.device());
  backend_for(x).adaptive_avg_pool(views::channels_last(x), y);
  return y;
}

namespace {
template <class Pool>
Tensor pooled_rows(std::string_view op, const Tensor& x, PoolOptions o, Pool pool) {
  o.stride = Pair(1, o.stride.value_or(o.kernel).width);
  o.kernel.height = 1, o.padding.height = 0, o.dilation.height = 1;
  return detail::batched(op, x, 3, [&](const Tensor& rows) {
    check::rank(op, "x", rows, 3);
    return squeeze(pool(unsqueeze(rows, 2), o), 2);
  });
}
}  // namespace

Tensor max_pool2d(const Tensor& x, const PoolOptions& options) {
  const MaxPool2d op{.geometry = detail::pool_geometry("max_pool2d", options),
                     .ceil_mode = options.ceil_mode};
  return detail::batched("max_pool2d", x, 4,
                         [&](const Tensor& images) { return apply(op, images); });
}
Tensor avg_pool2d(const Tensor& x, const PoolOptions& options) {
  if (options.dilation.height != 1 || options.dilation.width != 1)
    fail<UnsupportedError>("avg_pool2d", "dilation is max_pool2d's. Leave it out.");
  const AvgPool2d op{.geometry = detail::pool_geometry("avg_pool2d", options),
                     .ceil_mode = options.ceil_mode};
  return detail::batched("avg_pool2d", x, 4,
                         [&](const Tensor& images) { return apply(op, images); });
}
Tensor max_pool1d(const Tensor& x, const PoolOptions& options) {
  return pooled_rows("max_pool1d", x, options, &max_pool2d);
}
Tensor avg_pool1d(const Tensor& x, const PoolOptions& options) {
  return pooled_rows("avg_pool1d", x, options, &avg_pool2d);
}

Tensor adaptive_avg_pool2d(const Tensor& x, Pair output) {
  return detail::batched("adaptive_avg_pool2d", x, 4, [&](const Tensor& images) {
    return apply(AdaptiveAvgPool2d{.output = output}, images);
  });
}

namespace {
/// Returns the largest of each of `count` windows along a dimension, which meet or overlap by one.
Tensor largest_in_windows(const Tensor& x, int dim, int64_t count) {
  const int64_t size = x.shape()[dim];
  std::vector<Tensor> windows;
  for (int64_t i = 0; i < count; ++i)
    windows.push_back(
        max_with_indices(slice(x, dim, i * size / count, ((i + 1) * size - 1) / count + 1), dim,
                         true)
            .values);
  return cat(windows, dim);
}
}  // namespace

Tensor adaptive_max_pool2d(const Tensor& x, Pair output) {
  const std::string_view op = "adaptive_max_pool2d";
  return detail::batched(op, x, 4, [&](const Tensor& images) {
    check::rank(op, "x", images, 4);
    check::floating(op, images);
    const int64_t h = images.size(2), w = images.size(3);
    if (output.height < 1 || output.width < 1 || h == 0 || w == 0)
      fail<ShapeError>(op, "output ", output.height, " x ", output.width, " of ", described(images),
                       ". Both must have elements.");
    if (h % output.height == 0 && w % output.width == 0)
      return max_pool2d(images, {.kernel = {h / output.height, w / output.width}});
    // Columns first: this selects the first of equal elements in row-major order.
    return largest_in_windows(largest_in_windows(images, 3, output.width), 2, output.height);
  });
}

}  // namespace halftone
