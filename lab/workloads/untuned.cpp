// The models with untuned shapes, and the table of their names.
#include <halftone/lab/workloads/untuned.h>

#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>

namespace halftone::lab {
namespace {

SyntheticWorkload mlp(int64_t batch) {
  auto model = std::make_unique<nn::Sequential>(nn::models::mlp({784, 1000, 333, 10}));
  const MemoryScope scope(MemoryUse::input);
  return {.model = std::move(model),
          .inputs = randn({batch, 784}),
          .targets = randint(0, 10, {batch}),
          .gflop = gflop_of_step(double(batch), {784 * 1000, 1000 * 333, 333 * 10})};
}

/// Ten images of 45 x 37 in ten classes; per_image: the multiply-adds of each convolution.
SyntheticWorkload of_images(std::unique_ptr<nn::Layer> model,
                            const std::vector<double>& per_image) {
  const MemoryScope scope(MemoryUse::input);
  return {.model = std::move(model),
          .inputs = randn({10, 3, 45, 37}),
          .targets = randint(0, 10, {10}),
          .gflop = gflop_of_step(10, per_image)};
}

/// Three convolutions with batch norm, of 48 and 96 channels, and one of 1 x 1 to 333.
struct OddConvNet final : nn::Layer {
  nn::Conv2d conv1{3, 48, 3, {.padding = 1, .bias = false}};
  nn::BatchNorm2d bn1{48};
  nn::Conv2d conv2{48, 96, 3, {.stride = 2, .padding = 1, .bias = false}};
  nn::BatchNorm2d bn2{96};
  nn::Conv2d conv3{96, 96, 5, {.padding = 2, .bias = false}};
  nn::BatchNorm2d bn3{96};
  nn::Conv2d conv4{96, 333, 1};
  nn::Linear fc{333, 10};
  Tensor forward(const Tensor& x) const override {
    Tensor y = nn::conv_norm_relu(conv1, bn1, x);
    y = nn::conv_norm_relu(conv2, bn2, y);
    y = max_pool2d(y, {.kernel = 3, .stride = 2, .padding = 1});
    y = relu(conv4(nn::conv_norm_relu(conv3, bn3, y)));
    return fc(flatten(adaptive_avg_pool2d(y, 1), 1));
  }
  void describe(nn::Fields& field) override {
    field("conv1", conv1), field("bn1", bn1), field("conv2", conv2), field("bn2", bn2);
    field("conv3", conv3), field("bn3", bn3), field("conv4", conv4), field("fc", fc);
  }
};

/// A block like ConvNeXt's (Liu et al. 2022), with batch norm: a depthwise window of 7 x 7, two
/// convolutions of 1 x 1 with GELU between them, and a residual connection.
struct DepthwiseBlock final : nn::Layer {
  nn::Conv2d depthwise;
  nn::BatchNorm2d bn;
  nn::Conv2d up, down;
  explicit DepthwiseBlock(int64_t width)
      : depthwise(width, width, 7, {.padding = 3, .groups = width}),
        bn(width),
        up(width, 4 * width, 1),
        down(4 * width, width, 1) {}
  Tensor forward(const Tensor& x) const override { return x + down(gelu(up(bn(depthwise(x))))); }
  void describe(nn::Fields& field) override {
    field("depthwise", depthwise), field("bn", bn), field("up", up), field("down", down);
  }
};

struct DepthwiseNet final : nn::Layer {
  nn::Conv2d stem{3, 48, 3, {.padding = 1}};
  DepthwiseBlock block1{48};
  nn::Conv2d shrink{48, 96, 2, {.stride = 2}};
  DepthwiseBlock block2{96};
  nn::Linear fc{96, 10};
  Tensor forward(const Tensor& x) const override {
    return fc(flatten(adaptive_avg_pool2d(block2(shrink(block1(stem(x)))), 1), 1));
  }
  void describe(nn::Fields& field) override {
    field("stem", stem), field("block1", block1), field("shrink", shrink);
    field("block2", block2), field("fc", fc);
  }
};

SyntheticWorkload conv_48() {
  constexpr double in = 45 * 37, halved = 23 * 19, pooled = 12 * 10;
  return of_images(std::make_unique<OddConvNet>(),
                   {in * 48 * 27, halved * 96 * 48 * 9, pooled * 96 * 96 * 25, pooled * 333 * 96});
}

SyntheticWorkload depthwise_7x7() {
  constexpr double in = 45 * 37, halved = 22 * 18;
  return of_images(std::make_unique<DepthwiseNet>(),
                   {in * 48 * 27, in * 48 * 49, 2 * in * 48 * 192, halved * 96 * 48 * 4,
                    halved * 96 * 49, 2 * halved * 96 * 384});
}

/// A GPT with five heads of 48; causal attention masks half of its two products.
SyntheticWorkload gpt_48() {
  constexpr double length = 100, width = 240;
  auto model = std::make_unique<nn::models::Gpt>(nn::models::GptOptions{
      .vocabulary = 333, .context = 100, .layers = 2, .heads = 5, .width = 240});
  const MemoryScope scope(MemoryUse::input);
  return {.model = std::move(model),
          .inputs = randint(0, 333, {3, 100}),
          .targets = randint(0, 333, {3, 100}),
          .gflop = gflop_of_step(3 * length, {0, 2 * width * (12 * width + length), 333 * width})};
}

SyntheticWorkload lstm_100() {
  auto model = std::make_unique<nn::models::LstmClassifier>(
      333,
      nn::models::LstmClassifierOptions{.classes = 10, .width = 48, .hidden = 100, .layers = 2});
  const MemoryScope scope(MemoryUse::input);
  return {.model = std::move(model),
          .inputs = randint(0, 333, {10, 25}),
          .targets = randint(0, 10, {10}),
          .gflop = gflop_of_step(10 * 25, {0, 4 * 100 * (48 + 100), 4 * 100 * (100 + 100)})};
}

struct NamedUntuned {
  std::string_view name;
  SyntheticWorkload (*make)();
};
constexpr NamedUntuned all[] = {{"mlp_100", [] { return mlp(100); }},
                                {"mlp_1", [] { return mlp(1); }},
                                {"conv_48", conv_48},
                                {"depthwise_7x7", depthwise_7x7},
                                {"gpt_48", gpt_48},
                                {"lstm_100", lstm_100}};

}  // namespace

std::vector<std::string> untuned_names() {
  std::vector<std::string> names;
  for (const NamedUntuned& each : all) names.emplace_back(each.name);
  return names;
}

std::optional<SyntheticWorkload> make_untuned(const std::string& name) {
  for (const NamedUntuned& each : all)
    if (each.name == name) {
      SyntheticWorkload made = each.make();
      made.name = name;
      return made;
    }
  return std::nullopt;
}

}  // namespace halftone::lab
