// Layers on volumes [n, channels, depth, height, width], as torch.nn.Conv3d, BatchNorm3d and the
// pools with these names.
#pragma once

#include <optional>

#include <halftone/nn/conv.h>

namespace halftone::nn {

struct Conv3dOptions {
  Triple stride = 1, padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};
struct Conv3d final : Layer {
  Parameter weight, bias;  // [out, in / groups, kd, kh, kw]
  halftone::Conv3dOptions options;
  Conv3d(int64_t in_channels, int64_t out_channels, Triple kernel, Conv3dOptions options = {});
  Tensor forward(const Tensor& x) const override { return conv3d(x, weight, bias, options); }
  void describe(Fields& field) override { field("weight", weight), field("bias", bias); }
};

struct BatchNorm3d final : BatchNorm {
  explicit BatchNorm3d(int64_t channels, BatchNormOptions options = {});
  Tensor forward(const Tensor& x) const override { return normalized(x); }

 protected:
  void check_rank(const Tensor& x) const override;
};

struct MaxPool3d final : StatelessLayer {
  Pool3dOptions options;
  explicit MaxPool3d(const Pool3dOptions& o) : options(o) {}
  Tensor forward(const Tensor& x) const override { return max_pool3d(x, options); }
};
struct AvgPool3d final : StatelessLayer {
  Pool3dOptions options;
  explicit AvgPool3d(const Pool3dOptions& o) : options(o) {}
  Tensor forward(const Tensor& x) const override { return avg_pool3d(x, options); }
};
struct AdaptiveAvgPool3d final : StatelessLayer {
  Triple output;
  explicit AdaptiveAvgPool3d(Triple output_size) : output(output_size) {}
  Tensor forward(const Tensor& x) const override { return adaptive_avg_pool3d(x, output); }
};

}  // namespace halftone::nn
