// Residual networks (He et al. 2015), with the layers, parameter names and first values of
// torchvision's: files of `safetensors.torch.save_file(model.state_dict(), ...)` load unchanged.
// The workloads `resnet18_cifar` (11,173,962 parameters) and `resnet18_224` (11,195,493).
#pragma once

#include <array>
#include <optional>

#include <halftone/nn/conv_norm.h>
#include <halftone/nn/linear.h>
#include <halftone/nn/sequential.h>

namespace halftone::nn::models {

struct ResNetOptions {
  int64_t channels = 3, classes = 1000;
  /// Channels after the stem; each stage after the first doubles them.
  int64_t width = 64;
  /// For images of 32 x 32: the first convolution is 3 x 3 with stride 1, without max pooling.
  bool cifar_stem = false;
  /// The last norm of each block starts at 0, so blocks start as the identity (Goyal et al. 2017).
  bool zero_init_residual = false;
};

/// Maps an input to the shape of a block's output: a 1 x 1 convolution and a norm, named 0 and
/// 1.
struct Projection final : Layer {
  Conv2d conv;
  BatchNorm2d norm;
  Projection(int64_t in, int64_t out, int64_t stride)
      : conv(in, out, 1, {.stride = stride, .bias = false}), norm(out) {}
  Tensor forward(const Tensor& x) const override { return conv_norm(conv, norm, x); }
  void describe(Fields& field) override { field("0", conv), field("1", norm); }
};

/// Two 3 x 3 convolutions plus the identity: the block of resnet18 and resnet34.
struct BasicBlock final : Layer {
  static constexpr int64_t expansion = 1;  // output channels per `width`
  Conv2d conv1;
  BatchNorm2d bn1;
  Conv2d conv2;
  BatchNorm2d bn2;
  std::optional<Projection> downsample{};  // if the shape changes
  BasicBlock(int64_t in, int64_t width, int64_t stride, bool zero_init);
  /// x: [n, in, h, w]; the result: [n, width, h / stride, w / stride].
  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override;
};

/// 1 x 1 down to `width` channels, 3 x 3, 1 x 1 up to four times as many: the block of resnet50.
/// The 3 x 3 convolution has the stride, as torchvision's ("ResNet v1.5").
struct Bottleneck final : Layer {
  static constexpr int64_t expansion = 4;
  Conv2d conv1;
  BatchNorm2d bn1;
  Conv2d conv2;
  BatchNorm2d bn2;
  Conv2d conv3;
  BatchNorm2d bn3;
  std::optional<Projection> downsample{};
  Bottleneck(int64_t in, int64_t width, int64_t stride, bool zero_init);
  /// x: [n, in, h, w]; the result: [n, 4 width, h / stride, w / stride].
  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override;
};

struct ResNet final : Layer {
  enum class Block { basic, bottleneck };
  bool cifar_stem;
  Conv2d conv1;
  BatchNorm2d bn1;
  std::array<Sequential, 4> layers;  // layer1 to layer4: the stages
  Linear fc;
  /// depths: blocks per stage. Throws UsageError for sizes below 1.
  ResNet(Block block, const std::array<int64_t, 4>& depths, ResNetOptions options = {});
  /// x: [n, channels, h, w]; the result: logits [n, classes].
  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override;
};

/// As torchvision.models.resnet18, resnet34 and resnet50.
ResNet resnet18(ResNetOptions options = {});
ResNet resnet34(ResNetOptions options = {});
ResNet resnet50(ResNetOptions options = {});

}  // namespace halftone::nn::models
