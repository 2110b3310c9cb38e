// Pooling over windows of images [n, channels, height, width], as torch.nn.MaxPool2d, AvgPool2d,
// AdaptiveAvgPool2d. An absent stride means the size of the window.
#pragma once

#include <optional>

#include <halftone/autograd/ops.h>
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
  Tensor forward(const Tensor& x) const override { return avg_pool2d(x, options); }
};

struct AdaptiveAvgPool2d final : StatelessLayer {
  Pair output;
  explicit AdaptiveAvgPool2d(Pair output_size) : output(output_size) {}
  Tensor forward(const Tensor& x) const override { return adaptive_avg_pool2d(x, output); }
};

}  // namespace halftone::nn
