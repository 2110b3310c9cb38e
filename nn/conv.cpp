// Convolution layers: argument checks, allocation and first values.
#include <halftone/nn/conv.h>

#include <halftone/nn/init.h>
#include <halftone/nn/layers.h>

namespace halftone::nn {
namespace {

void check(std::string_view layer, int64_t in_channels, int64_t out_channels, Pair kernel,
           int64_t groups) {
  detail::require_positive(layer, "in_channels", in_channels);
  detail::require_positive(layer, "out_channels", out_channels);
  detail::require_positive(layer, "kernel height", kernel.height);
  detail::require_positive(layer, "kernel width", kernel.width);
  detail::require_positive(layer, "groups", groups);
  detail::require_divisible(layer, "in_channels", in_channels, groups);
  detail::require_divisible(layer, "out_channels", out_channels, groups);
}

}  // namespace

Conv1d::Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel, Conv1dOptions o)
    : options{
          .stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {
  check("Conv1d", in_channels, out_channels, kernel, o.groups);
  weight = Parameter(Shape{out_channels, in_channels / o.groups, kernel});
  if (o.bias) bias = Parameter(Shape{out_channels});
  init::layer_default(weight, bias);
}

Conv2d::Conv2d(int64_t in_channels, int64_t out_channels, Pair kernel, Conv2dOptions o)
    : options{
          .stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {
  check("Conv2d", in_channels, out_channels, kernel, o.groups);
  weight = Parameter(Shape{out_channels, in_channels / o.groups, kernel.height, kernel.width});
  if (o.bias) bias = Parameter(Shape{out_channels});
  init::layer_default(weight, bias);
}

ConvTranspose2d::ConvTranspose2d(int64_t in_channels, int64_t out_channels, Pair kernel,
                                 ConvTranspose2dOptions o)
    : options{.stride = o.stride,
              .padding = o.padding,
              .output_padding = o.output_padding,
              .dilation = o.dilation,
              .groups = o.groups} {
  check("ConvTranspose2d", in_channels, out_channels, kernel, o.groups);
  weight = Parameter(Shape{in_channels, out_channels / o.groups, kernel.height, kernel.width});
  if (o.bias) bias = Parameter(Shape{out_channels});
  init::layer_default(weight,
                      bias);  // as in PyTorch, the fan in is size(1) of the transposed weight
}

}  // namespace halftone::nn
