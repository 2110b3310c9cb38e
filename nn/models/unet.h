// A small U-Net (Ronneberger et al. 2015): a class for every pixel of an image. Going down, each
// level halves the image and doubles the channels. Going up, the image is enlarged and joined with
// the same level's result from the way down. Convolutions are padded and keep sizes.
#pragma once

#include <vector>

#include <halftone/nn/conv_norm.h>

namespace halftone::nn::models {

struct UNetOptions {
  int64_t channels = 3, classes = 2;
  int64_t width = 32;  // channels of the first level
  int64_t depth = 3;   // halvings
  /// How images are enlarged: by transposed convolutions, or by bilinear interpolation and a 1 x 1
  /// convolution.
  bool transposed = true;
};

/// Twice: a 3 x 3 convolution, batch norm, ReLU. Named conv1, bn1, conv2, bn2.
struct DoubleConv final : Layer {
  Conv2d conv1;
  BatchNorm2d bn1;
  Conv2d conv2;
  BatchNorm2d bn2;
  DoubleConv(int64_t in, int64_t out);
  /// x: [n, in, h, w]; the result: [n, out, h, w].
  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override;
};

struct UNet final : Layer {
  bool transposed;
  std::vector<DoubleConv> down;       // down.0 at full size, then after each halving
  std::vector<ConvTranspose2d> grow;  // up.0.grow, ...: to the size of the level above
  std::vector<Conv2d> narrow;         // the same without `transposed`: up.0.narrow, ...
  std::vector<DoubleConv> up;         // up.0.conv, ...: from the deepest level to the first
  Conv2d head;
  /// Throws UsageError for sizes below 1.
  explicit UNet(UNetOptions options = {});
  /// x: [n, channels, h, w], h and w divisible by 2^depth, else ShapeError; the result: logits [n,
  /// classes, h, w], which cross_entropy takes with targets [n, h, w].
  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override;

 private:
  Tensor enlarged(std::size_t level, const Tensor& x) const;
};

}  // namespace halftone::nn::models
