// The network in the order of torchvision/models/resnet.py.
#include <halftone/nn/models/models.h>

#include <halftone/nn/arguments.h>
#include <halftone/nn/init.h>

namespace halftone::nn::models {
namespace {

/// Returns a convolution without bias, because the norm that follows would remove the bias.
Conv2d plain_conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1) {
  return Conv2d(in, out, kernel, {.stride = stride, .padding = kernel / 2, .bias = false});
}

std::optional<Projection> projection(int64_t in, int64_t out, int64_t stride) {
  if (in == out && stride == 1) return std::nullopt;
  return Projection(in, out, stride);
}

Tensor identity(const std::optional<Projection>& downsample, const Tensor& x) {
  return downsample ? (*downsample)(x) : x;
}

template <class Block>
Sequential stage(int64_t in, int64_t width, int64_t depth, int64_t stride, bool zero_init) {
  detail::require_positive("ResNet", "a number of blocks", depth);
  Sequential blocks;
  for (int64_t i = 0; i < depth; ++i)
    blocks.add(
        Block(i == 0 ? in : width * Block::expansion, width, i == 0 ? stride : 1, zero_init));
  return blocks;
}

template <class Block>
std::array<Sequential, 4> stages(const std::array<int64_t, 4>& depths, int64_t width,
                                 bool zero_init) {
  constexpr int64_t e = Block::expansion;
  return {stage<Block>(width, width, depths[0], 1, zero_init),
          stage<Block>(width * e, width * 2, depths[1], 2, zero_init),
          stage<Block>(width * 2 * e, width * 4, depths[2], 2, zero_init),
          stage<Block>(width * 4 * e, width * 8, depths[3], 2, zero_init)};
}

/// Initializes convolutions with He's normal values by fan-out (keeps the variance in backward).
struct InitialiseConvolutions final : Fields {
  bool module(const std::string&, Module& module) override {
    if (auto* conv = dynamic_cast<Conv2d*>(&module))
      init::kaiming_normal(conv->weight,
                           {.fan = init::Fan::out, .nonlinearity = init::Nonlinearity::relu});
    return true;
  }
};

}  // namespace

BasicBlock::BasicBlock(int64_t in, int64_t width, int64_t stride, bool zero_init)
    : conv1(plain_conv(in, width, 3, stride)),
      bn1(width),
      conv2(plain_conv(width, width, 3)),
      bn2(width),
      downsample(projection(in, width, stride)) {
  if (zero_init) init::zeros(bn2.weight);
}

Tensor BasicBlock::forward(const Tensor& x) const {
  const Tensor y = conv_norm_relu(conv1, bn1, x);
  return norm_add_relu(bn2, conv2(y), identity(downsample, x));
}

void BasicBlock::describe(Fields& field) {
  field("conv1", conv1), field("bn1", bn1);
  field("conv2", conv2), field("bn2", bn2);
  if (downsample) field("downsample", *downsample);
}

Bottleneck::Bottleneck(int64_t in, int64_t width, int64_t stride, bool zero_init)
    : conv1(plain_conv(in, width, 1)),
      bn1(width),
      conv2(plain_conv(width, width, 3, stride)),
      bn2(width),
      conv3(plain_conv(width, width * expansion, 1)),
      bn3(width * expansion),
      downsample(projection(in, width * expansion, stride)) {
  if (zero_init) init::zeros(bn3.weight);
}

Tensor Bottleneck::forward(const Tensor& x) const {
  Tensor y = conv_norm_relu(conv1, bn1, x);
  y = conv_norm_relu(conv2, bn2, y);
  return norm_add_relu(bn3, conv3(y), identity(downsample, x));
}

void Bottleneck::describe(Fields& field) {
  field("conv1", conv1), field("bn1", bn1);
  field("conv2", conv2), field("bn2", bn2);
  field("conv3", conv3), field("bn3", bn3);
  if (downsample) field("downsample", *downsample);
}

ResNet::ResNet(Block block, const std::array<int64_t, 4>& depths, ResNetOptions options)
    : cifar_stem(options.cifar_stem),
      conv1(plain_conv(options.channels, options.width, cifar_stem ? 3 : 7, cifar_stem ? 1 : 2)),
      bn1(options.width),
      layers(block == Block::basic
                 ? stages<BasicBlock>(depths, options.width, options.zero_init_residual)
                 : stages<Bottleneck>(depths, options.width, options.zero_init_residual)),
      fc(options.width * 8 *
             (block == Block::basic ? BasicBlock::expansion : Bottleneck::expansion),
         options.classes) {
  InitialiseConvolutions().walk(*this);
}

Tensor ResNet::forward(const Tensor& x) const {
  Tensor y = conv_norm_relu(conv1, bn1, x);
  if (!cifar_stem) y = max_pool2d(y, {.kernel = 3, .stride = Pair(2), .padding = 1});
  for (const Sequential& stage : layers) y = stage(y);
  return fc(flatten(adaptive_avg_pool2d(y, 1), 1));
}

void ResNet::describe(Fields& field) {
  field("conv1", conv1), field("bn1", bn1);
  for (std::size_t i = 0; i < layers.size(); ++i) field("layer" + std::to_string(i + 1), layers[i]);
  field("fc", fc);
}

ResNet resnet18(ResNetOptions options) {
  return ResNet(ResNet::Block::basic, {2, 2, 2, 2}, options);
}
ResNet resnet34(ResNetOptions options) {
  return ResNet(ResNet::Block::basic, {3, 4, 6, 3}, options);
}
ResNet resnet50(ResNetOptions options) {
  return ResNet(ResNet::Block::bottleneck, {3, 4, 6, 3}, options);
}

}  // namespace halftone::nn::models
