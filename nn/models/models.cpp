// The small models.
#include <halftone/nn/models/models.h>

#include <halftone/core/error.h>
#include <halftone/nn/layers.h>

namespace halftone::nn::models {

Sequential mlp(const std::vector<int64_t>& sizes) {
  if (sizes.size() < 2)
    fail<UsageError>("models.mlp", sizes.size(),
                     " sizes given. Give at least an input and an output size.");
  Sequential model;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
    if (i > 0) model.add(Relu());
    model.add(Linear(sizes[i], sizes[i + 1]));
  }
  return model;
}

// The network, as a module with named parts.

LeNet::LeNet(LeNetOptions options)
    : conv1(options.channels, 32, 3, {.padding = 1}),
      conv2(32, 64, 3, {.padding = 1}),
      linear1(64 * 7 * 7, 128),
      linear2(128, options.classes) {}

Tensor LeNet::forward(const Tensor& x) const {
  Tensor y = max_pool2d(relu(conv1(x)), {.kernel = 2});  // [n, 32, 14, 14]
  y = max_pool2d(relu(conv2(y)), {.kernel = 2});         // [n, 64, 7, 7]
  return linear2(relu(linear1(flatten(y, 1))));
}

void LeNet::describe(Fields& field) {
  field("conv1", conv1), field("conv2", conv2);
  field("linear1", linear1), field("linear2", linear2);
}

// The network in the order of torchvision/models/resnet.py.

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

// The network: down, and up again, joined with the results from the way down.

DoubleConv::DoubleConv(int64_t in, int64_t out)
    : conv1(in, out, 3, {.padding = 1, .bias = false}),
      bn1(out),
      conv2(out, out, 3, {.padding = 1, .bias = false}),
      bn2(out) {}

Tensor DoubleConv::forward(const Tensor& x) const {
  return conv_norm_relu(conv2, bn2, conv_norm_relu(conv1, bn1, x));
}

void DoubleConv::describe(Fields& field) {
  field("conv1", conv1), field("bn1", bn1);
  field("conv2", conv2), field("bn2", bn2);
}

UNet::UNet(UNetOptions o) : transposed(o.transposed), head(o.width, o.classes, 1) {
  detail::require_positive("UNet", "depth", o.depth);
  down.emplace_back(o.channels, o.width);
  for (int64_t level = 1; level <= o.depth; ++level)
    down.emplace_back(o.width << (level - 1), o.width << level);
  for (int64_t level = o.depth; level > 0; --level) {
    const int64_t in = o.width << level, out = in / 2;
    if (transposed) grow.emplace_back(in, out, 2, ConvTranspose2dOptions{.stride = 2});
    else narrow.emplace_back(in, out, 1);
    up.emplace_back(in, out);
  }
}

Tensor UNet::enlarged(std::size_t level, const Tensor& x) const {
  if (transposed) return grow[level](x);
  // Channels first, so that only a quarter of the pixels is multiplied.
  return interpolate(narrow[level](x),
                     {.scale_factor = Factors(2), .mode = Interpolation::bilinear});
}

Tensor UNet::forward(const Tensor& x) const {
  const int64_t factor = int64_t(1) << up.size();
  if (x.rank() != 4 || x.size(2) % factor != 0 || x.size(3) % factor != 0)
    fail<ShapeError>("UNet", "needs [n, channels, h, w] with h and w divisible by ", factor,
                     ", got ", described(x), ". Pad or resize the images.");
  std::vector<Tensor> seen;
  Tensor y = down[0](x);
  for (std::size_t level = 1; level < down.size(); ++level) {
    seen.push_back(y);
    y = down[level](max_pool2d(y, {.kernel = 2}));
  }
  for (std::size_t level = 0; level < up.size(); ++level) {
    y = up[level](cat({seen.back(), enlarged(level, y)}, 1));
    seen.pop_back();
  }
  return head(y);
}

void UNet::describe(Fields& field) {
  for (std::size_t i = 0; i < down.size(); ++i) field("down." + std::to_string(i), down[i]);
  for (std::size_t i = 0; i < up.size(); ++i) {
    const std::string name = "up." + std::to_string(i);
    if (transposed) field(name + ".grow", grow[i]);
    else field(name + ".narrow", narrow[i]);
    field(name + ".conv", up[i]);
  }
  field("head", head);
}

// The network, as a module with named parts.

LstmClassifier::LstmClassifier(int64_t vocabulary, LstmClassifierOptions o)
    : embedding(vocabulary, o.width),
      lstm(o.width, o.hidden,
           {.layers = o.layers,
            .batch_first = true,
            .bidirectional = o.bidirectional,
            .dropout = o.dropout}),
      fc(o.hidden * (o.bidirectional ? 2 : 1), o.classes) {}

Tensor LstmClassifier::forward(const Tensor& tokens) const {
  const Tensor h = lstm(embedding(tokens)).h;  // [layers * directions, n, hidden]
  Tensor last = select(h, 0, -1);
  if (lstm.options.bidirectional) last = cat({select(h, 0, -2), last}, 1);
  return fc(dropout(last, lstm.options.dropout, training));
}

void LstmClassifier::describe(Fields& field) {
  field("embedding", embedding), field("lstm", lstm), field("fc", fc);
}

// The vision transformer in the order of timm, with its first values.

namespace {
Linear vit_linear(int64_t in, int64_t out) {
  Linear layer(in, out);
  init::normal(layer.weight, 0, 0.02), init::zeros(layer.bias);
  return layer;
}
constexpr double vit_eps = 1e-6;
}  // namespace

VitBlock::VitBlock(const VitOptions& options)
    : heads(options.heads),
      norm1(options.width, {.eps = vit_eps}),
      norm2(options.width, {.eps = vit_eps}),
      qkv(vit_linear(options.width, 3 * options.width)),
      proj(vit_linear(options.width, options.width)),
      fc1(vit_linear(options.width, 4 * options.width)),
      fc2(vit_linear(4 * options.width, options.width)) {}

Tensor VitBlock::forward(const Tensor& x) const {
  const Tensor y = x + proj(self_attention(qkv(norm1(x)), heads));
  return y + fc2(gelu_erf(fc1(norm2(y))));
}

void VitBlock::describe(Fields& field) {
  field("norm1", norm1), field("attn.qkv", qkv), field("attn.proj", proj);
  field("norm2", norm2), field("mlp.fc1", fc1), field("mlp.fc2", fc2);
}

Vit::Vit(VitOptions given)
    : options(given),
      patch_embed(given.channels, given.width, given.patch, {.stride = given.patch}),
      norm(given.width, {.eps = vit_eps}),
      head(vit_linear(given.width, given.classes)) {
  detail::require_positive("Vit", "image", options.image);
  detail::require_positive("Vit", "layers", options.layers);
  detail::require_divisible("Vit", "image", options.image, options.patch);
  detail::require_divisible("Vit", "width", options.width, options.heads);
  const int64_t patches = (options.image / options.patch) * (options.image / options.patch);
  cls_token = Parameter(Shape{1, 1, options.width});
  pos_embed = Parameter(Shape{1, patches + 1, options.width});
  init::normal(cls_token, 0, 1e-6), init::normal(pos_embed, 0, 0.02);
  for (int64_t i = 0; i < options.layers; ++i) blocks.emplace_back(options);
}

Tensor Vit::forward(const Tensor& x) const {
  if (!x.defined() || x.rank() != 4 || x.size(2) != options.image || x.size(3) != options.image)
    fail<ShapeError>("Vit", "the images are ", x.defined() ? x.shape() : Shape{}, ", not [n, ",
                     options.channels, ", ", options.image, ", ", options.image,
                     "]. Resize them (data/transforms.h), or make the model for them.");
  const Tensor patches = transpose(flatten(patch_embed(x), 2), 1, 2);  // [n, patches, width]
  const Tensor first = expand(cls_token, {x.size(0), 1, options.width});
  Tensor y = cat({cast(first, patches.dtype()), patches}, 1) + pos_embed;
  for (const VitBlock& block : blocks) y = block(y);
  return head(select(norm(y), 1, 0));
}

void Vit::describe(Fields& field) {
  field("cls_token", cls_token), field("pos_embed", pos_embed);
  field("patch_embed.proj", patch_embed);
  for (std::size_t i = 0; i < blocks.size(); ++i) field("blocks." + std::to_string(i), blocks[i]);
  field("norm", norm), field("head", head);
}

}  // namespace halftone::nn::models
