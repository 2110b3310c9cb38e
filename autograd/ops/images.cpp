// Shapes and checks of operations on images.
#include <halftone/autograd/ops/images.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/autograd/ops/index.h>
#include <halftone/autograd/ops/logical.h>
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
  save(in, w, bias);
  if (accumulate && x.dtype() != f64) return forward_accumulating(bias, shape);
  Tensor y = empty_channels_last(shape, x.dtype(), x.device());
  backend_for(x).conv(x, weight, detail::contiguous_or_undefined(bias), geometry, y);
  return y;
}

// A convolution as products with windows, in an accumulator. A group g has its own channels.

namespace {
/// The sizes of a convolution's products: y_g [rows, out] = windows_g [rows, depth] w_g^T.
struct WindowProducts {
  UnfoldOptions options;
  int64_t groups, out, depth;
  WindowProducts(const Tensor& w, const ConvGeometry& g)
      : options{.kernel = {w.size(2), w.size(3)},
                .dilation = {g.dilation[0], g.dilation[1]},
                .padding = {g.padding[0], g.padding[1]},
                .stride = {g.stride[0], g.stride[1]}},
        groups(g.groups),
        out(w.size(0) / g.groups),
        depth(w.size(1) * w.size(2) * w.size(3)) {}
  /// Returns the windows of images, [n places, groups depth].
  Tensor windows(const Tensor& x) const {
    const Tensor rows = permute(unfold(x, options), {0, 2, 1});
    return reshape(rows, {rows.size(0) * rows.size(1), rows.size(2)});
  }
  Tensor weight(const Tensor& w, int64_t g) const {
    return views::slice(reshape(w, {groups * out, depth}), 0, g * out, out);
  }
};
/// Returns images [n, c, h, w] in NHWC memory as rows [n h w, c], and the reverse.
Tensor rows_of(const Tensor& images) {
  const Tensor last = views::channels_last(images);
  const int64_t channels = last.size(1);
  return last.view_as({last.numel() / channels, channels}, {channels, 1}, last.offset());
}
Tensor images_of(const Tensor& rows, const Shape& shape) {
  Tensor y = empty_channels_last(shape, rows.dtype(), rows.device());
  Tensor to = y.view_as(rows.shape(), {rows.size(1), 1}, y.offset());
  backend_for(rows).copy(rows, to);
  return y;
}
}  // namespace

Tensor Conv2d::forward_accumulating(const Tensor& bias, const Shape& shape) const {
  const WindowProducts of(weight, geometry);
  const Tensor windows = of.windows(x);
  std::vector<Tensor> parts;
  for (int64_t g = 0; g < of.groups; ++g) {
    Tensor y = empty({windows.size(0), of.out}, x.dtype(), x.device());
    const Tensor own =
        bias.defined() ? views::contiguous(views::slice(bias, 0, g * of.out, of.out)) : bias;
    detail::multiply(views::slice(windows, 1, g * of.depth, of.depth),
                     detail::transposed(of.weight(weight, g)), own, accumulate, y);
    parts.push_back(std::move(y));
  }
  return images_of(of.groups == 1 ? parts[0] : cat(parts, 1), shape);
}

std::array<Tensor, 3> Conv2d::backward_accumulating(const Tensor& dy) const {
  const WindowProducts of(weight, geometry);
  const Tensor rows = rows_of(dy), windows = needs[1] ? of.windows(x) : Tensor();
  std::vector<Tensor> to_windows, to_weights;
  for (int64_t g = 0; g < of.groups; ++g) {
    const Tensor own = views::slice(rows, 1, g * of.out, of.out);
    if (needs[0])
      to_windows.push_back(Matmul::product(own, of.weight(weight, g), x.dtype(), accumulate));
    if (needs[1])
      to_weights.push_back(Matmul::product(detail::transposed(own),
                                           views::slice(windows, 1, g * of.depth, of.depth),
                                           needs.dtype(1), accumulate));
  }
  Tensor dx, dweight, dbias;
  if (needs[0]) {
    const Tensor all = of.groups == 1 ? to_windows[0] : cat(to_windows, 1);
    const Tensor columns =
        permute(reshape(all, {x.size(0), rows.size(0) / x.size(0), all.size(1)}), {0, 2, 1});
    dx = views::channels_last(fold(columns, {x.size(2), x.size(3)}, of.options));
  }
  if (needs[1])
    dweight = reshape(of.groups == 1 ? to_weights[0] : cat(to_weights, 0), weight.shape());
  if (needs[2])
    dbias = reduce_to(rows, {1, rows.size(1)}, needs.dtype(2)).view_as({rows.size(1)}, {1}, 0);
  return {dx, dweight, dbias};
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

// Windows, and sampling at the positions of a grid: indices of pixels and sums of products.

namespace {
/// Returns i64 [within, windows]: the places of windows' elements, for a kernel, a dilation and a
/// stride.
Tensor window_places(int64_t kernel, int64_t dilation, int64_t stride, int64_t windows,
                     Device device) {
  const Tensor within = arange(kernel, i64, device) * dilation;
  return unsqueeze(within, 1) + arange(windows, i64, device) * stride;
}
Tensor flat(const Tensor& x) { return reshape(x, {x.numel()}); }

/// The number of windows along height and width of a size; throws unless there are some.
Pair windows_of(std::string_view op, Pair size, const UnfoldOptions& o) {
  std::array<int64_t, 2> counts{};
  for (const std::size_t i : {0, 1}) {
    const int64_t kernel = o.kernel.array()[i], dilation = o.dilation.array()[i],
                  padding = o.padding.array()[i], stride = o.stride.array()[i],
                  in = size.array()[i];
    const auto sane = [](int64_t n, int64_t least) { return n >= least && n <= 1 << 30; };
    const bool valid =
        sane(kernel, 1) && sane(dilation, 1) && sane(padding, 0) && sane(stride, 1) && sane(in, 0);
    const int64_t room = valid ? in + 2 * padding - dilation * (kernel - 1) - 1 : -1;
    if (room < 0)
      fail<ShapeError>(op, "a kernel of ", kernel, " with dilation ", dilation, ", padding ",
                       padding, " and stride ", stride, " has no window in ", in,
                       " pixels. Use positive numbers, and a kernel that fits.");
    counts[i] = room / stride + 1;
  }
  return {counts[0], counts[1]};
}
}  // namespace

Tensor unfold(const Tensor& x, int dim, int64_t size, int64_t step) {
  check::defined("unfold", "the input", x);
  const int d = normalize_dim("unfold", dim, x.rank());
  const Tensor from = x.rank() == 0 ? reshape(x, {1}) : x;
  const int64_t length = from.shape()[d];
  if (size < 0 || size > length || step < 1)
    fail<UsageError>("unfold", "windows of ", size, " elements, ", step, " apart, in dimension ", d,
                     " of ", described(x), ". Use a size from 0 to ", length,
                     " and a step of 1 or more.");
  const int64_t count = (length - size) / step + 1;
  const Tensor places = window_places(size, 1, step, count, x.device());
  const Tensor y =
      movedim(unflatten(index_select(from, d, flat(places)), d, {size, count}), {d}, {-1});
  return x.rank() == 0 ? reshape(y, {size}) : y;
}

Tensor unfold(const Tensor& x, const UnfoldOptions& o) {
  return detail::batched("unfold", x, 4, [&](const Tensor& images) {
    check::rank("unfold", "x", images, 4);
    const Pair windows = windows_of("unfold", {images.size(2), images.size(3)}, o);
    const auto along = [&](const Tensor& from, int d, int64_t kernel, int64_t dilation,
                           int64_t stride, int64_t count) {
      return index_select(from, d,
                          flat(window_places(kernel, dilation, stride, count, x.device())));
    };
    Tensor y = pad(images, {o.padding.width, o.padding.width, o.padding.height, o.padding.height});
    y = along(y, 2, o.kernel.height, o.dilation.height, o.stride.height, windows.height);
    y = along(y, 3, o.kernel.width, o.dilation.width, o.stride.width, windows.width);
    const int64_t n = images.size(0), c = images.size(1);
    y = permute(reshape(y, {n, c, o.kernel.height, windows.height, o.kernel.width, windows.width}),
                {0, 1, 2, 4, 3, 5});
    return reshape(y, {n, c * o.kernel.height * o.kernel.width, windows.height * windows.width});
  });
}

Tensor fold(const Tensor& x, Pair size, const UnfoldOptions& o) {
  return detail::batched("fold", x, 3, [&](const Tensor& columns) {
    check::rank("fold", "x", columns, 3);
    const Pair windows = windows_of("fold", size, o);
    const int64_t kernel = o.kernel.height * o.kernel.width, n = columns.size(0),
                  c = columns.size(1) / kernel;
    if (columns.size(1) % kernel != 0 || columns.size(2) != windows.height * windows.width)
      fail<ShapeError>("fold", "columns are ", described(columns), ". They must be [n, c * ",
                       kernel, ", ", windows.height * windows.width, "] for images of ",
                       size.height, " x ", size.width, ".");
    const auto along = [&](const Tensor& from, int d, int64_t length, int64_t kernel_size,
                           int64_t dilation, int64_t stride, int64_t count) {
      Shape shape = from.shape();
      shape[d] = length;
      return index_add(zeros(shape, x.dtype(), x.device()), d,
                       flat(window_places(kernel_size, dilation, stride, count, x.device())), from);
    };
    const int64_t h = size.height + 2 * o.padding.height, w = size.width + 2 * o.padding.width;
    Tensor y = permute(
        reshape(columns, {n, c, o.kernel.height, o.kernel.width, windows.height, windows.width}),
        {0, 1, 2, 4, 3, 5});
    y = reshape(y, {n, c, o.kernel.height * windows.height, o.kernel.width * windows.width});
    y = along(y, 3, w, o.kernel.width, o.dilation.width, o.stride.width, windows.width);
    y = along(y, 2, h, o.kernel.height, o.dilation.height, o.stride.height, windows.height);
    return pad(y, {-o.padding.width, -o.padding.width, -o.padding.height, -o.padding.height});
  });
}

namespace {
/// Returns the positions of a grid's numbers in pixels along a side of an image.
Tensor pixels_of(const Tensor& grid, int64_t side, const GridSampleOptions& o) {
  const auto n = double(side);
  Tensor place = o.align_corners ? (grid + 1) * ((n - 1) / 2) : ((grid + 1) * n - 1) / 2;
  if (o.padding == GridPadding::zeros) return place;
  if (o.padding == GridPadding::reflection) {
    const double low = o.align_corners ? 0 : -0.5, span = o.align_corners ? n - 1 : n;
    if (span == 0) return zeros_like(place);
    const Tensor from_low = place - low, way = where(from_low.detach() < 0, -from_low, from_low);
    const Tensor rest = fmod(way, span), turns = floor(way.detach() / span);
    place = where(fmod(turns, 2) == 0, rest + low, span + low - rest);
  }
  return where(isnan(place.detach()), 0, clamp(place, 0, n - 1));
}

/// Returns the pixels at whole positions x and y, [n, 1, places]; 0 outside of the images.
Tensor pixels_at(const Tensor& images, const Tensor& x, const Tensor& y) {
  const int64_t n = images.size(0), c = images.size(1), h = images.size(2), w = images.size(3);
  const Tensor inside =
      logical_and(logical_and(x >= 0, x <= w - 1), logical_and(y >= 0, y <= h - 1));
  const auto whole = [&](const Tensor& side) { return cast(where(inside, side, 0), i64); };
  const Tensor place = whole(y) * w + whole(x);
  const Tensor picked =
      gather(reshape(images, {n, c, h * w}), 2, expand(place, {n, c, place.size(2)}));
  return where(inside, picked, 0);
}
}  // namespace

Tensor grid_sample(const Tensor& x_in, const Tensor& grid_in, const GridSampleOptions& options) {
  check::floating("grid_sample", x_in);
  check::floating("grid_sample", grid_in);
  check::rank("grid_sample", "x", x_in, 4);
  check::rank("grid_sample", "the grid", grid_in, 4);
  std::vector<Tensor> inputs{x_in, grid_in};
  if (InputCaster* caster = active_caster()) caster->cast_inputs(composed::grid_sample, inputs);
  const CasterScope as_is(nullptr);
  check::same_dtype("grid_sample", inputs[0], inputs[1]);
  const DType dtype = inputs[0].dtype(), wide = dtype == f64 ? f64 : f32;
  const Tensor x = cast(inputs[0], wide), grid = cast(inputs[1], wide);
  const int64_t n = x.size(0), h = x.size(2), w = x.size(3), oh = grid.size(1), ow = grid.size(2);
  if (grid.size(0) != n || grid.size(3) != 2 || h == 0 || w == 0)
    fail<ShapeError>("grid_sample", "x is ", described(x_in), ", the grid ", described(grid_in),
                     ". They must be [n, c, h, w] with pixels and [n, oh, ow, 2].");
  const auto coordinate = [&](int64_t i, int64_t side) {
    return reshape(pixels_of(select(grid, 3, i), side, options), {n, 1, oh * ow});
  };
  const Tensor px = coordinate(0, w), py = coordinate(1, h);
  Tensor y;
  if (options.mode == Interpolation::nearest) {
    y = pixels_at(x, round(px), round(py));
    if (grid.requires_grad())  // its gradient is 0
      y = y + where(zeros({}, boolean, x.device()), px + py, 0);
  } else {
    const Tensor left = floor(px.detach()), top = floor(py.detach());
    const Tensor right_share = px - left, bottom_share = py - top;
    const Tensor left_share = 1 - right_share, top_share = 1 - bottom_share;
    y = pixels_at(x, left, top) * (left_share * top_share) +
        pixels_at(x, left + 1, top) * (right_share * top_share) +
        pixels_at(x, left, top + 1) * (left_share * bottom_share) +
        pixels_at(x, left + 1, top + 1) * (right_share * bottom_share);
  }
  return cast(reshape(y, {n, x.size(1), oh, ow}), dtype);
}

// Volumes are cut into frames, and frames are joined again. In NDHWC memory no step but the join of
// a convolution's frames copies elements.

namespace {

/// [n, c, d, h, w] as [n, d, h, w, c].
Tensor channels_at_end(const Tensor& x) { return permute(x, {0, 2, 3, 4, 1}); }
/// [n, d, h, w, c] as [n, c, d, h, w].
Tensor volumes_of(const Tensor& x) { return permute(x, {0, 4, 1, 2, 3}); }
/// [n, h, w, c] as images [n, c, h, w].
Tensor images_of(const Tensor& x) { return permute(x, {0, 3, 1, 2}); }

/// Applies an operation on images to the frames of volumes, and another to columns: images of the
/// depths of each pixel.
template <class OfFrames, class OfColumns>
Tensor in_two_passes(const Tensor& x, const OfFrames& of_frames, const OfColumns& of_columns) {
  const int64_t n = x.size(0), c = x.size(1), d = x.size(2);
  const Tensor frames =
      of_frames(images_of(reshape(channels_at_end(x), {n * d, x.size(3), x.size(4), c})));
  const int64_t h = frames.size(2), w = frames.size(3);
  const Tensor columns =
      of_columns(images_of(reshape(permute(frames, {0, 2, 3, 1}), {n, d, h * w, c})));
  return volumes_of(reshape(permute(columns, {0, 2, 3, 1}), {n, columns.size(2), h, w, c}));
}

/// conv2d in casting policies, without its layout of weights.
constexpr OpInfo cast_as_conv2d{Conv2d::info.name, Conv2d::info.cast_class, Conv2d::info.reason};

void require_volumes(std::string_view op, const Tensor& x) {
  check::rank(op, "x", x, 5);
  if (x.numel() == 0)
    fail<ShapeError>(op, described(x), " is empty. Every dimension must have elements.");
}

PoolOptions of_frames(const Pool3dOptions& o) {
  PoolOptions options{.kernel = o.kernel.image(),
                      .padding = o.padding.image(),
                      .count_include_pad = o.count_include_pad,
                      .dilation = o.dilation.image(),
                      .ceil_mode = o.ceil_mode};
  if (o.stride) options.stride = o.stride->image();
  return options;
}
PoolOptions of_columns(const Pool3dOptions& o) {
  PoolOptions options{.kernel = {o.kernel.depth, 1},
                      .padding = {o.padding.depth, 0},
                      .count_include_pad = o.count_include_pad,
                      .dilation = {o.dilation.depth, 1},
                      .ceil_mode = o.ceil_mode};
  options.stride = Pair(o.stride ? o.stride->depth : o.kernel.depth, 1);
  return options;
}
/// Runs f in f32 or wider: a mean of means is then rounded once.
template <class F> Tensor rounded_once(const Tensor& x, const F& f) {
  return x.dtype() == f32 || x.dtype() == f64 ? f(x) : cast(f(cast(x, f32)), x.dtype());
}
}  // namespace

Tensor conv3d(const Tensor& in, const Tensor& weight, const Tensor& bias,
              const Conv3dOptions& options) {
  check::rank("conv3d", "weight", weight, 5);
  return detail::batched("conv3d", in, 5, [&](const Tensor& volumes) {
    require_volumes("conv3d", volumes);
    // Cast as conv2d casts, but first: fewer bytes are joined.
    std::array<Tensor, 3> inputs{volumes, weight, bias};
    if (InputCaster* caster = active_caster()) caster->cast_inputs(cast_as_conv2d, inputs);
    const auto& [x, w, b] = inputs;
    const int64_t n = x.size(0), c = x.size(1), groups = options.groups, kd = w.size(2);
    const int64_t stride = options.stride.depth, dilation = options.dilation.depth;
    if (groups < 1 || c != w.size(1) * groups)
      fail<ShapeError>("conv3d", "x is ", described(in), ", the weight ", described(weight), ", ",
                       groups, " groups. The weight must be [out, in / groups, kd, kh, kw].");
    if (stride < 1 || dilation < 1 || options.padding.depth < 0)
      fail<UsageError>("conv3d", "along the depth the stride is ", stride, ", the dilation ",
                       dilation, ", the padding ", options.padding.depth,
                       ". Stride and dilation must be 1 or more, the padding 0 or more.");
    const int64_t padded = x.size(2) + 2 * options.padding.depth, window = dilation * (kd - 1) + 1;
    if (kd < 1 || padded < window)
      fail<ShapeError>("conv3d", "x is ", described(in), " and the weight ", described(weight),
                       ": with padding the depth is ", padded, ", and the window needs ", window,
                       ". Use a larger input or padding, or a smaller kernel.");
    const int64_t depths = (padded - window) / stride + 1, per_group = c / groups;
    Tensor frames = channels_at_end(x);
    if (options.padding.depth > 0)
      frames = pad(frames, {0, 0, 0, 0, 0, 0, options.padding.depth, options.padding.depth});
    frames = reshape(frames, {n, padded, x.size(3), x.size(4), groups, per_group});
    std::vector<Tensor> under_window;
    for (int64_t k = 0; k < kd; ++k)
      under_window.push_back(
          slice(frames, 1, k * dilation, k * dilation + (depths - 1) * stride + 1, stride));
    const Tensor joined = kd == 1 ? under_window[0] : cat(under_window, 5);
    const Tensor images = images_of(reshape(joined, {n * depths, x.size(3), x.size(4), kd * c}));
    const Tensor flat =
        reshape(permute(w, {0, 2, 1, 3, 4}), {w.size(0), kd * per_group, w.size(3), w.size(4)});
    const Tensor y = conv2d(images, flat, b,
                            {.stride = options.stride.image(),
                             .padding = options.padding.image(),
                             .dilation = options.dilation.image(),
                             .groups = groups});
    return volumes_of(
        reshape(permute(y, {0, 2, 3, 1}), {n, depths, y.size(2), y.size(3), y.size(1)}));
  });
}

Tensor max_pool3d(const Tensor& in, const Pool3dOptions& options) {
  return detail::batched("max_pool3d", in, 5, [&](const Tensor& x) {
    require_volumes("max_pool3d", x);
    return in_two_passes(
        x, [&](const Tensor& frames) { return max_pool2d(frames, of_frames(options)); },
        [&](const Tensor& columns) { return max_pool2d(columns, of_columns(options)); });
  });
}

Tensor avg_pool3d(const Tensor& in, const Pool3dOptions& options) {
  return detail::batched("avg_pool3d", in, 5, [&](const Tensor& volumes) {
    require_volumes("avg_pool3d", volumes);
    return rounded_once(volumes, [&](const Tensor& x) {
      return in_two_passes(
          x, [&](const Tensor& frames) { return avg_pool2d(frames, of_frames(options)); },
          [&](const Tensor& columns) { return avg_pool2d(columns, of_columns(options)); });
    });
  });
}

Tensor adaptive_avg_pool3d(const Tensor& in, Triple output) {
  return detail::batched("adaptive_avg_pool3d", in, 5, [&](const Tensor& volumes) {
    require_volumes("adaptive_avg_pool3d", volumes);
    return rounded_once(volumes, [&](const Tensor& x) {
      return in_two_passes(
          x, [&](const Tensor& frames) { return adaptive_avg_pool2d(frames, output.image()); },
          [&](const Tensor& columns) {
            return adaptive_avg_pool2d(columns, {output.depth, columns.size(3)});
          });
    });
  });
}

Tensor adaptive_max_pool3d(const Tensor& in, Triple output) {
  return detail::batched("adaptive_max_pool3d", in, 5, [&](const Tensor& x) {
    require_volumes("adaptive_max_pool3d", x);
    return in_two_passes(
        x, [&](const Tensor& frames) { return adaptive_max_pool2d(frames, output.image()); },
        [&](const Tensor& columns) {
          return adaptive_max_pool2d(columns, {output.depth, columns.size(3)});
        });
  });
}

}  // namespace halftone
