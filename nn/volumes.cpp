#include <halftone/nn/volumes.h>

namespace halftone::nn {

Conv3d::Conv3d(int64_t in_channels, int64_t out_channels, Triple kernel, Conv3dOptions o)
    : options{
          .stride = o.stride, .padding = o.padding, .dilation = o.dilation, .groups = o.groups} {
  detail::require_positive("Conv3d", "in_channels", in_channels);
  detail::require_positive("Conv3d", "out_channels", out_channels);
  detail::require_positive("Conv3d", "kernel depth", kernel.depth);
  detail::require_positive("Conv3d", "kernel height", kernel.height);
  detail::require_positive("Conv3d", "kernel width", kernel.width);
  detail::require_positive("Conv3d", "groups", o.groups);
  detail::require_divisible("Conv3d", "in_channels", in_channels, o.groups);
  detail::require_divisible("Conv3d", "out_channels", out_channels, o.groups);
  weight = Parameter(
      Shape{out_channels, in_channels / o.groups, kernel.depth, kernel.height, kernel.width});
  if (o.bias) bias = Parameter(Shape{out_channels});
  init::layer_default(weight, bias);
}

BatchNorm3d::BatchNorm3d(int64_t channels, BatchNormOptions options)
    : BatchNorm("BatchNorm3d", channels, options) {}

void BatchNorm3d::check_rank(const Tensor& x) const {
  if (x.rank() != 5)
    fail<ShapeError>("BatchNorm3d", "needs [n, channels, depth, height, width], got ", described(x),
                     ". Images take BatchNorm2d.");
}

}  // namespace halftone::nn
