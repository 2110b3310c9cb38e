// Layers on images [n, channels, height, width], and on sequences for Conv1d.
#pragma once

#include <concepts>
#include <optional>

#include <halftone/autograd/ops.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/module.h>
#include <halftone/nn/norm.h>

namespace halftone::nn {

// Convolutions, as torch.nn.Conv1d, Conv2d and ConvTranspose2d with zero padding: weight [out, in /
// groups, kernel...] (transposed: [in, out / groups, kernel...]), the same first values. Images are
// logical NCHW.

struct Conv1dOptions {
  int64_t stride = 1;
  ConvPadding padding = 0;  // or "same", "valid"
  int64_t dilation = 1, groups = 1;
  bool bias = true;
};
struct Conv2dOptions {
  Pair stride = 1;
  ConvPadding padding = 0;  // or "same", "valid"
  Pair dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};
struct ConvTranspose2dOptions {
  Pair stride = 1, padding = 0, output_padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

struct Conv1d final : Layer {
  Parameter weight, bias;
  halftone::Conv1dOptions options;
  Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel, Conv1dOptions options = {});
  template <std::integral Stride, class... More>
  Conv1d(int64_t, int64_t, int64_t, Stride, More...) : Conv1d(1, 1, 1) {
    static_assert(
        detail::positional<Stride>,
        "name what follows the kernel: Conv1d(in, out, kernel, {.stride = 1, .padding = 1})");
  }
  Tensor forward(const Tensor& x) const override { return conv1d(x, weight, bias, options); }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

struct Conv2d final : Layer {
  Parameter weight, bias;
  halftone::Conv2dOptions options;
  Conv2d(int64_t in_channels, int64_t out_channels, Pair kernel, Conv2dOptions options = {});
  template <std::integral Stride, class... More>
  Conv2d(int64_t, int64_t, Pair, Stride, More...) : Conv2d(1, 1, 1) {
    static_assert(
        detail::positional<Stride>,
        "name what follows the kernel: Conv2d(in, out, kernel, {.stride = 1, .padding = 1})");
  }
  Tensor forward(const Tensor& x) const override { return conv2d(x, weight, bias, options); }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

struct ConvTranspose2d final : Layer {
  Parameter weight, bias;
  halftone::ConvTranspose2dOptions options;
  ConvTranspose2d(int64_t in_channels, int64_t out_channels, Pair kernel,
                  ConvTranspose2dOptions options = {});
  template <std::integral Stride, class... More>
  ConvTranspose2d(int64_t, int64_t, Pair, Stride, More...) : ConvTranspose2d(1, 1, 1) {
    static_assert(detail::positional<Stride>,
                  "name what follows the kernel: ConvTranspose2d(in, out, kernel, {.stride = 1, "
                  ".padding = 1})");
  }
  Tensor forward(const Tensor& x) const override {
    return conv_transpose2d(x, weight, bias, options);
  }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

// Three common sequences of convolutional networks, with batch norm and its successor in one pass
// over memory. Models call these functions instead of the layers. The layers keep their own names,
// so the paths of their parameters do not change.

/// Returns norm(conv(x)); x: [n, in, h, w].
inline Tensor conv_norm(const Conv2d& conv, const BatchNorm2d& norm, const Tensor& x) {
  return norm(conv(x));
}
/// Returns relu(norm(conv(x))); x: [n, in, h, w].
inline Tensor conv_norm_relu(const Conv2d& conv, const BatchNorm2d& norm, const Tensor& x) {
  return norm.then_relu(conv(x));
}
/// Returns relu(norm(x) + residual), the end of a residual block; both of one shape.
inline Tensor norm_add_relu(const BatchNorm2d& norm, const Tensor& x, const Tensor& residual) {
  return norm.then_relu(x, residual);
}

// Pooling over windows of images [n, channels, height, width], as torch.nn.MaxPool2d, AvgPool2d,
// AdaptiveAvgPool2d. An absent stride means the size of the window.

struct MaxPool2dOptions {
  std::optional<Pair> stride{};
  Pair padding = 0, dilation = 1;
  bool ceil_mode = false;
};
struct MaxPool2d final : StatelessLayer {
  PoolOptions options;
  explicit MaxPool2d(Pair kernel, MaxPool2dOptions o = {})
      : options{.kernel = kernel,
                .stride = o.stride,
                .padding = o.padding,
                .dilation = o.dilation,
                .ceil_mode = o.ceil_mode} {}
  explicit MaxPool2d(const int64_t (&kernel)[2], MaxPool2dOptions o = {})
      : MaxPool2d(Pair(kernel[0], kernel[1]), o) {}
  template <std::integral Stride, class... More> MaxPool2d(Pair, Stride, More...) : MaxPool2d(1) {
    static_assert(detail::positional<Stride>,
                  "name what follows the kernel: MaxPool2d(2, {.stride = 2})");
  }
  Tensor forward(const Tensor& x) const override { return max_pool2d(x, options); }
};

struct AvgPool2dOptions {
  std::optional<Pair> stride{};
  Pair padding = 0;
  bool count_include_pad = true, ceil_mode = false;
};
struct AvgPool2d final : StatelessLayer {
  PoolOptions options;
  explicit AvgPool2d(Pair kernel, AvgPool2dOptions o = {})
      : options{.kernel = kernel,
                .stride = o.stride,
                .padding = o.padding,
                .count_include_pad = o.count_include_pad,
                .ceil_mode = o.ceil_mode} {}
  explicit AvgPool2d(const int64_t (&kernel)[2], AvgPool2dOptions o = {})
      : AvgPool2d(Pair(kernel[0], kernel[1]), o) {}
  template <std::integral Stride, class... More> AvgPool2d(Pair, Stride, More...) : AvgPool2d(1) {
    static_assert(detail::positional<Stride>,
                  "name what follows the kernel: AvgPool2d(2, {.stride = 2})");
  }
  Tensor forward(const Tensor& x) const override { return avg_pool2d(x, options); }
};

struct AdaptiveAvgPool2d final : StatelessLayer {
  Pair output;
  explicit AdaptiveAvgPool2d(Pair output_size) : output(output_size) {}
  Tensor forward(const Tensor& x) const override { return adaptive_avg_pool2d(x, output); }
};

// Enlarges (or shrinks) images without parameters, as torch.nn.Upsample of images: to a size or by
// a factor. nn::ConvTranspose2d does it with parameters.

struct Upsample final : StatelessLayer {
  InterpolateOptions options;
  explicit Upsample(InterpolateOptions o) : options(o) {}
  Tensor forward(const Tensor& x) const override { return interpolate(x, options); }
};

}  // namespace halftone::nn
