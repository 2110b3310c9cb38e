// Small models: a multi-layer perceptron, LeNet, a residual network, a U-Net, an LSTM classifier
// and a vision transformer.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/rnn.h>

namespace halftone::nn::models {

// The multi-layer perceptron: Linear, ReLU, Linear, ..., Linear. The workloads `mlp_tiny` {784,
// 128, 10} and `mlp` {784, 2048, 2048, 10}.

/// Returns the network. sizes: input, hidden..., output. Parameters are named as in a PyTorch
/// Sequential: 0.weight, 2.weight, ...
Sequential mlp(const std::vector<int64_t>& sizes);

// A small convolutional network for 28 x 28 images, after LeCun et al. 1998 with today's ReLU and
// max pooling: two convolutions, two linear layers, 421,642 parameters for one channel and ten
// classes. The workload `lenet`.

struct LeNetOptions {
  int64_t channels = 1, classes = 10;
};

struct LeNet final : Layer {
  Conv2d conv1, conv2;
  Linear linear1, linear2;
  explicit LeNet(LeNetOptions options = {});
  /// x: [n, channels, 28, 28]; the result: logits [n, classes].
  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override;
};

// Residual networks (He et al. 2015), with the layers, parameter names and first values of
// torchvision's: files of `safetensors.torch.save_file(model.state_dict(), ...)` load unchanged.
// The workloads `resnet18_cifar` (11,173,962 parameters) and `resnet18_224` (11,195,493).

struct ResNetOptions {
  int64_t channels = 3, classes = 1000;
  /// Channels after the stem; each stage after the first doubles them.
  int64_t width = 64;
  /// Whether to begin with a 3 x 3 convolution of stride 1, without max pooling: for 32 x 32
  /// images.
  bool cifar_stem = false;
  /// Whether each block's last norm starts at 0, and the block as the identity (Goyal et al. 2017).
  bool zero_init_residual = false;
};

/// Maps a block's input to the shape of its output by a 1 x 1 convolution and a norm, named 0 and
/// 1.
struct Projection final : Layer {
  Conv2d conv;
  BatchNorm2d norm;
  Projection(int64_t in, int64_t out, int64_t stride)
      : conv(in, out, 1, {.stride = stride, .bias = false}), norm(out) {}
  Tensor forward(const Tensor& x) const override { return conv_norm(conv, norm, x); }
  void describe(Fields& field) override { field("0", conv), field("1", norm); }
};

/// The block of resnet18 and resnet34: two 3 x 3 convolutions, plus the block's input.
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

/// The block of resnet50: convolutions of 1 x 1 to `width` channels, of 3 x 3, and of 1 x 1 to 4
/// `width` channels. The 3 x 3 convolution has the stride, as in torchvision ("ResNet v1.5").
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

/// Return the networks of these names in torchvision.models, with initial weights.
ResNet resnet18(ResNetOptions options = {});
ResNet resnet34(ResNetOptions options = {});
ResNet resnet50(ResNetOptions options = {});

// A small U-Net (Ronneberger et al. 2015): a class for every pixel of an image. Going down, each
// level halves the image and doubles the channels. Going up, the image is enlarged and joined with
// the same level's result from the way down. Convolutions are padded and keep sizes.

struct UNetOptions {
  int64_t channels = 3, classes = 2;
  int64_t width = 32;  // channels of the first level
  int64_t depth = 3;   // halvings
  /// How images are enlarged: by transposed convolutions, or by bilinear interpolation and a 1 x 1
  /// convolution.
  bool transposed = true;
};

/// A 3 x 3 convolution, batch norm and ReLU, twice; named conv1, bn1, conv2, bn2.
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

// Classifies sequences of tokens: an embedding, an LSTM, and a linear layer on the state after the
// last token (Hochreiter & Schmidhuber 1997).

struct LstmClassifierOptions {
  int64_t classes = 2;
  int64_t width = 128;   // of the embedding
  int64_t hidden = 128;  // of each direction
  int64_t layers = 1;
  bool bidirectional = false;  // the last states of both directions are joined
  double dropout = 0;          // between layers, and before the linear layer
};

struct LstmClassifier final : Layer {
  Embedding embedding;
  Lstm lstm;
  Linear fc;
  explicit LstmClassifier(int64_t vocabulary, LstmClassifierOptions options = {});
  /// tokens: i64 [n, time]; the result: logits [n, classes].
  Tensor forward(const Tensor& tokens) const override;
  void describe(Fields& field) override;
};

// A vision transformer (Dosovitskiy et al. 2020): patches of an image as tokens, after a class
// token that the head reads. With the names and layouts of timm's VisionTransformer
// (blocks.0.attn.qkv), whose files load unchanged. The workload `vit_tiny`.

struct VitOptions {
  int64_t channels = 3, classes = 1000;
  int64_t image = 224, patch = 16;  // sides of squares; the patch divides the image
  int64_t layers = 12, heads = 12, width = 768;
};

/// Computes x = x + attention(norm1(x)), then x + mlp(norm2(x)).
struct VitBlock final : Layer {
  int64_t heads;
  LayerNorm norm1, norm2;
  Linear qkv, proj, fc1, fc2;
  explicit VitBlock(const VitOptions& options);
  /// x: [n, tokens, width]; the result has the same shape.
  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override;
};

struct Vit final : Layer {
  VitOptions options;
  Conv2d patch_embed;
  Parameter cls_token, pos_embed;  // [1, 1, width], [1, patches + 1, width]
  std::vector<VitBlock> blocks;
  LayerNorm norm;
  Linear head;
  /// Throws UsageError for sizes below 1, ShapeError unless `patch` divides `image` and `heads`
  /// divides `width`.
  explicit Vit(VitOptions options = {});
  /// x: [n, channels, image, image]; the result: logits [n, classes].
  Tensor forward(const Tensor& x) const override;
  void describe(Fields& field) override;
};

}  // namespace halftone::nn::models
