// Shapes and checks of operations on images.
#include <halftone/autograd/ops/images.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/autograd/ops/index.h>
#include <halftone/core/error.h>

namespace halftone {

namespace {
void check_geometry(std::string_view op, const ConvGeometry& g) {
  for (int i : {0, 1}) {
    const auto d = std::size_t(i);
    constexpr int64_t most = std::numeric_limits<int32_t>::max();  // limit of libraries
    if (g.stride[d] < 1 || g.dilation[d] < 1 || g.padding[d] < 0 || g.groups < 1 ||
        std::max({g.stride[d], g.dilation[d], g.padding[d], g.groups}) > most)
      fail<UsageError>(
          op, "stride ", g.stride[d], ", padding ", g.padding[d], ", dilation ", g.dilation[d],
          ", groups ", g.groups,
          ". Stride, dilation and groups must be at least 1, padding at least 0. Use numbers below "
          "2^31.");
  }
}

void check_inputs(std::string_view op, const Tensor& x, const Tensor& w, const Tensor& bias) {
  check::rank(op, "x", x, 4);
  check::rank(op, "weight", w, 4);
  check::floating(op, x);
  check::same_dtype(op, x, w);
  if (bias.defined()) check::same_dtype(op, x, bias);
  if (w.numel() == 0) fail<ShapeError>(op, "weight is ", described(w), ". It must have elements.");
}

void require_64_bits(std::string_view op, Checked size, const ConvGeometry& g) {
  if (size.overflowed)
    fail<ShapeError>(op, "sizes are beyond 64 bits with strides ", Dims(g.stride), ", padding ",
                     Dims(g.padding), ", dilation ", Dims(g.dilation), ". Use smaller ones.");
}

void require_output(std::string_view op, const Tensor& x, const Tensor& w, const Shape& shape) {
  if (shape[2] < 1 || shape[3] < 1)
    fail<ShapeError>(op, "the output would be ", shape, " for x ", described(x), " and weight ",
                     described(w), ". Use a smaller kernel or more padding.");
}
}  // namespace

Tensor detail::weight_layout(const Tensor& w) {
  return w.device() == Device::cpu() && w.is_channels_last() ? w : views::contiguous(w);
}

/// Counts as if the stride were 1: the geometry is not among the inputs.
double Conv2d::flops(std::span<const Tensor> inputs) {
  const Tensor &x = inputs[0], &weight = inputs[1];
  return x.rank() == 4 ? 2 * double(weight.numel()) * double(x.size(0) * x.size(2) * x.size(3)) : 0;
}

Tensor Conv2d::forward(const Tensor& in, const Tensor& w, const Tensor& bias) {
  check_geometry("conv2d", geometry);
  check_inputs("conv2d", in, w, bias);
  const Checked channels = Checked(w.shape()[1]) * geometry.groups;
  if (channels.overflowed || in.shape()[1] != channels.value || w.shape()[0] % geometry.groups != 0)
    fail<ShapeError>(
        "conv2d", "channels do not fit: x is ", described(in), ", weight is ", described(w),
        ", groups ", geometry.groups,
        "; x.size(1) must equal weight.size(1) * groups and groups divide weight.size(0).");
  check::vector_of("conv2d", "bias", bias, w.shape()[0]);
  Shape shape{in.shape()[0], w.shape()[0], 0, 0};
  for (int i : {0, 1}) {
    const auto d = std::size_t(i);
    const Checked span = Checked(in.shape()[2 + i]) + Checked(2) * geometry.padding[d] -
                         Checked(geometry.dilation[d]) * (w.shape()[2 + i] - 1) - 1;
    require_64_bits("conv2d", span, geometry);
    shape[2 + i] = span.value < 0 ? 0 : span.value / geometry.stride[d] + 1;
  }
  require_output("conv2d", in, w, shape);
  x = views::channels_last(in), weight = detail::weight_layout(w);
  Tensor y = empty_channels_last(shape, x.dtype(), x.device());
  backend_for(x).conv(x, weight, detail::contiguous_or_undefined(bias), geometry, y);
  return y;
}

Tensor ConvTranspose2d::forward(const Tensor& in, const Tensor& w, const Tensor& bias) {
  check_geometry("conv_transpose2d", geometry);
  check_inputs("conv_transpose2d", in, w, bias);
  const Checked channels = Checked(w.shape()[1]) * geometry.groups;
  require_64_bits("conv_transpose2d", channels, geometry);
  const int64_t out = channels.value;
  if (in.shape()[1] != w.shape()[0] || w.shape()[0] % geometry.groups != 0)
    fail<ShapeError>("conv_transpose2d", "channels do not fit: x is ", described(in),
                     ", weight is ", described(w), ", groups ", geometry.groups,
                     "; x.size(1) must equal weight.size(0), a multiple of groups.");
  check::vector_of("conv_transpose2d", "bias", bias, out);
  Shape shape{in.shape()[0], out, 0, 0};
  const std::array<int64_t, 2> extra = output_padding.array();
  for (int i : {0, 1}) {
    const auto d = std::size_t(i);
    if (extra[d] < 0 || extra[d] >= std::max(geometry.stride[d], geometry.dilation[d]))
      fail<UsageError>("conv_transpose2d", "output_padding ", extra[d], " with stride ",
                       geometry.stride[d], ". It must be smaller than stride or dilation.");
    const Checked size = Checked(in.shape()[2 + i] - 1) * geometry.stride[d] -
                         Checked(2) * geometry.padding[d] +
                         Checked(geometry.dilation[d]) * (w.shape()[2 + i] - 1) + extra[d] + 1;
    require_64_bits("conv_transpose2d", size, geometry);
    shape[2 + i] = size.value;
  }
  require_output("conv_transpose2d", in, w, shape);
  x = views::channels_last(in), weight = detail::weight_layout(w);
  Tensor y = empty_channels_last(shape, x.dtype(), x.device());
  // A short result is rounded once: products with a bias to be added are f32 until then.
  const bool wider = bias.defined() && size_of(x.dtype()) < size_of(f32);
  const MemoryScope scope(MemoryUse::workspace);
  Tensor products = wider ? empty_channels_last(shape, f32, x.device()) : y;
  backend_for(x).conv_backward_data(x, weight, geometry, products);
  if (bias.defined()) {
    const Tensor rows =
        views::expand(detail::as_shape(views::contiguous(bias), {1, out, 1, 1}), shape);
    backend_for(x).binary(call_of<BinaryFormulas>(formula::Add{}), products, rows, y);
  }
  return y;
}

void ConvPadding::set(std::string_view word) {
  if (word != "same" && word != "valid")
    fail<UsageError>("ConvPadding", "\"", word,
                     "\" is not a padding. Use \"same\", \"valid\" or numbers.");
  same = word == "same";
}

namespace {
/// Returns x with the part of the "same" border that is on one side only; the two-sided part goes
/// into the geometry. An odd number of rows has the larger part at the end, as PyTorch's.
Tensor keeping_size(const Tensor& x, const Tensor& weight, ConvGeometry& g) {
  if (g.stride != std::array<int64_t, 2>{1, 1})
    fail<UsageError>("conv2d", "padding \"same\" with stride ", Dims(g.stride), ". Use stride 1.");
  Dims at_end = Dims::filled(4, 0);
  for (int i : {0, 1}) {
    const auto d = std::size_t(i);
    const int64_t total = std::max<int64_t>(g.dilation[d], 1) * (weight.size(2 + i) - 1);
    g.padding[d] = total / 2, at_end[3 - 2 * i] = total % 2;
  }
  return at_end == Dims::filled(4, 0) ? x : pad(x, at_end);
}
}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  return detail::batched("conv2d", x, 4, [&](const Tensor& images) {
    ConvGeometry g{options.stride.array(), options.padding.array(), options.dilation.array(),
                   options.groups};
    check::rank("conv2d", "weight", weight, 4);
    const Tensor padded =
        options.padding.same && images.rank() == 4 ? keeping_size(images, weight, g) : images;
    return apply(Conv2d{.geometry = g}, padded, weight, bias);
  });
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv1dOptions& options) {
  check::rank("conv1d", "weight", weight, 3);
  return detail::batched("conv1d", x, 3, [&](const Tensor& rows) {
    check::rank("conv1d", "x", rows, 3);
    Conv2dOptions flat{.stride = {1, options.stride},
                       .padding = {0, options.padding.width},
                       .dilation = {1, options.dilation},
                       .groups = options.groups};
    flat.padding.same = options.padding.same;
    return squeeze(conv2d(unsqueeze(rows, 2), unsqueeze(weight, 2), bias, flat), 2);
  });
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& options) {
  const ConvTranspose2d op{.geometry = {options.stride.array(), options.padding.array(),
                                        options.dilation.array(), options.groups},
                           .output_padding = options.output_padding};
  return detail::batched("conv_transpose2d", x, 4,
                         [&](const Tensor& images) { return apply(op, images, weight, bias); });
}

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose1dOptions& options) {
  check::rank("conv_transpose1d", "weight", weight, 3);
  return detail::batched("conv_transpose1d", x, 3, [&](const Tensor& rows) {
    check::rank("conv_transpose1d", "x", rows, 3);
    const ConvTranspose2dOptions flat{.stride = {1, options.stride},
                                      .padding = {0, options.padding},
                                      .output_padding = {0, options.output_padding},
                                      .dilation = {1, options.dilation},
                                      .groups = options.groups};
    return squeeze(conv_transpose2d(unsqueeze(rows, 2), unsqueeze(weight, 2), bias, flat), 2);
  });
}

// Shapes and checks of pooling.

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
Tensor adaptive_avg_pool1d(const Tensor& x, int64_t output) {
  const auto pool = [&](const Tensor& rows, const PoolOptions&) {
    return adaptive_avg_pool2d(rows, {1, output});
  };
  return pooled_rows("adaptive_avg_pool1d", x, {}, pool);
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

// Shapes and checks of interpolation.

namespace {
void check_options(const InterpolateOptions& o) {
  if (o.size.has_value() == o.scale_factor.has_value())
    fail<UsageError>("interpolate", o.size ? "both" : "neither",
                     " of size and scale_factor given. Give one of them.");
  if (o.align_corners && o.mode == Interpolation::nearest)
    fail<UsageError>("interpolate",
                     "align_corners has no meaning for nearest. Leave it, or use bilinear.");
  if (o.scale_factor)
    for (const double factor : o.scale_factor->array())
      if (!(factor > 0))
        fail<UsageError>("interpolate", "scale_factor is ", factor, ". It must be positive.");
}
}  // namespace

Tensor Interpolate::forward(const Tensor& x) {
  check_options(options);
  check::rank("interpolate", "x", x, 4);
  check::floating("interpolate", x);
  shape = x.shape(), from = x.dtype();
  geometry.mode = options.mode, geometry.align_corners = options.align_corners;
  Shape result = shape;
  for (int i : {0, 1}) {
    const auto d = std::size_t(i);
    const auto in = double(shape[2 + i]);
    const double factor = options.scale_factor ? options.scale_factor->array()[d] : 0;
    if (!(in * factor < 0x1p62))
      fail<ShapeError>("interpolate", "scale_factor ", factor, " of ", described(x),
                       " gives sizes beyond 64 bits. Use a smaller one.");
    result[2 + i] = options.size ? options.size->array()[d] : int64_t(std::floor(in * factor));
    if (result[2 + i] > 0)
      geometry.step[d] = options.size ? in / double(result[2 + i]) : 1 / factor;
  }
  if (result[2] < 1 || result[3] < 1 || shape[2] < 1 || shape[3] < 1)
    fail<ShapeError>("interpolate", "the output would be ", result, " for x ", described(x),
                     ". Both must have elements.");
  Tensor y = empty_channels_last(result, f32_result ? f32 : from, x.device());
  backend_for(x).interpolate(views::channels_last(x), geometry, y);
  return y;
}

}  // namespace halftone
