// Shapes and checks of convolutions.
#include <halftone/autograd/ops/images.h>

#include <algorithm>
#include <limits>

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

/// Returns the weight in a layout that backends take.
Tensor weight_of(const Tensor& w) {
  return w.device() == Device::cpu() && w.is_channels_last() ? w : views::contiguous(w);
}
}  // namespace

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
  x = views::channels_last(in), weight = weight_of(w);
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
  x = views::channels_last(in), weight = weight_of(w);
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

}  // namespace halftone
