// Pooling over windows of images [n, channels, height, width], as torch.nn.MaxPool2d, AvgPool2d,
// AdaptiveAvgPool2d. An absent stride means the size of the window.
#pragma once

#include <concepts>
#include <optional>

#include <halftone/autograd/ops.h>
#include <halftone/nn/arguments.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

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

}  // namespace halftone::nn
