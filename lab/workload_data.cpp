// Models and batches of the workloads.
#include <halftone/lab/workload_data.h>

#include <halftone/autograd/ops.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/random.h>
#include <halftone/core/tensor.h>
#include <halftone/data/data_loader.h>
#include <halftone/data/sets.h>
#include <halftone/data/text.h>
#include <halftone/nn/conv.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>

namespace halftone::lab {

double gflop_of_step(double samples, const std::vector<double>& multiply_adds) {
  double total = 0;
  for (std::size_t i = 0; i < multiply_adds.size(); ++i)
    total += (i == 0 ? 2 : 3) * 2 * samples * multiply_adds[i];
  return total * 1e-9;
}

namespace {

SyntheticWorkload mlp(const std::string& name, const std::vector<int64_t>& sizes, int64_t batch) {
  std::vector<double> products;
  for (std::size_t i = 0; i + 1 < sizes.size(); ++i)
    products.push_back(double(sizes[i] * sizes[i + 1]));
  auto model = std::make_unique<nn::Sequential>(nn::models::mlp(sizes));
  const MemoryScope scope(MemoryUse::input);
  return {name, std::move(model), randn({batch, sizes.front()}), randint(0, sizes.back(), {batch}),
          gflop_of_step(double(batch), products)};
}

SyntheticWorkload lenet() {
  auto model = std::make_unique<nn::models::LeNet>();
  const MemoryScope scope(MemoryUse::input);
  return {"lenet", std::move(model), randn({128, 1, 28, 28}), randint(0, 10, {128}),
          gflop_of_step(128, {784 * 32 * 9, 196 * 64 * 288, 3136 * 128, 128 * 10})};
}

/// Counts the convolutions of ResNet-18 on images of `side`, and its linear layer.
SyntheticWorkload resnet18(const std::string& name, const nn::models::ResNetOptions& o,
                           int64_t batch, int64_t side) {
  double per_image = 0;
  const auto conv = [&](double in, double out, double kernel, double out_side) {
    per_image += in * out * kernel * kernel * out_side * out_side;
  };
  double place = o.cifar_stem ? double(side) : double(side / 2), width = 64;
  conv(3, width, o.cifar_stem ? 3 : 7, place);
  const double stem = per_image;
  if (!o.cifar_stem) place /= 2;
  for (int stage = 0; stage < 4; ++stage) {
    const double in = stage == 0 ? width : width / 2;
    if (stage > 0) place /= 2, conv(in, width, 1, place);
    conv(in, width, 3, place);
    for (int i = 0; i < 3; ++i) conv(width, width, 3, place);
    if (stage < 3) width *= 2;
  }
  per_image += width * double(o.classes);
  auto model = std::make_unique<nn::models::ResNet>(nn::models::resnet18(o));
  const MemoryScope scope(MemoryUse::input);
  return {name, std::move(model), randn({batch, 3, side, side}), randint(0, o.classes, {batch}),
          gflop_of_step(double(batch), {stem, per_image - stem})};
}

/// Counts a decoder's linear maps, its head, and the two products of causal attention, of which
/// half is masked.
SyntheticWorkload gpt(const std::string& name, const nn::models::GptOptions& o, int64_t batch,
                      int64_t length) {
  const auto width = double(o.width);
  const double per_token =
      double(o.layers) * width * (12 * width + double(length)) + double(o.vocabulary) * width;
  auto model = std::make_unique<nn::models::Gpt>(o);
  const MemoryScope scope(MemoryUse::input);
  return {name, std::move(model), randint(0, o.vocabulary, {batch, length}),
          randint(0, o.vocabulary, {batch, length}),
          gflop_of_step(double(batch * length), {0, per_token})};
}
}  // namespace

std::vector<std::string> synthetic_names() {
  return {"mlp_tiny",     "mlp",      "lenet",    "resnet18_cifar",
          "resnet18_224", "gpt_tiny", "gpt_char", "gpt2_124m"};
}

std::string synthetic_list() {
  std::string list;
  for (const std::string& name : synthetic_names()) list += (list.empty() ? "" : ", ") + name;
  return list;
}

Tensor logits_loss(const Tensor& logits, const Tensor& targets) {
  return cross_entropy(flatten(logits, 0, -2), flatten(targets));
}

namespace {
/// `large`: batches that keep a GPU busy.
SyntheticWorkload on_cpu(const std::string& name, bool large) {
  if (name == "mlp_tiny") return mlp(name, {784, 128, 10}, 64);
  if (name == "mlp")
    return large ? mlp(name, {784, 8192, 8192, 10}, 8192) : mlp(name, {784, 2048, 2048, 10}, 512);
  if (name == "lenet") return lenet();
  if (name == "resnet18_cifar")
    return resnet18(name, {.classes = 10, .cifar_stem = true}, large ? 512 : 64, 32);
  if (name == "resnet18_224")
    return resnet18(name, {.classes = large ? 1000 : 37}, large ? 256 : 16, 224);
  if (name == "gpt_tiny")
    return gpt(name, {.vocabulary = 65, .context = 64, .layers = 4, .heads = 4, .width = 128}, 16,
               64);
  if (name == "gpt_char")
    return gpt(name, {.vocabulary = 65, .context = 256, .layers = 6, .heads = 6, .width = 384},
               large ? 64 : 8, 256);
  if (name == "gpt2_124m")
    return gpt(name,
               {.vocabulary = 50304, .context = 1024, .layers = 12, .heads = 12, .width = 768},
               large ? 16 : 1, large ? 1024 : 512);
  if (auto untuned = make_untuned(name)) return std::move(*untuned);
  fail<UsageError>("workload", "there is no workload named \"", name, "\". Use one of ",
                   synthetic_list(), ".");
}
}  // namespace

SyntheticWorkload make_synthetic(const std::string& name, Device device, uint64_t seed) {
  manual_seed(seed);
  SyntheticWorkload w = on_cpu(name, device.kind != DeviceKind::cpu);
  w.model->to(device);
  const MemoryScope scope(MemoryUse::input);
  w.inputs = w.inputs.to(device), w.targets = w.targets.to(device);
  return w;
}

// The models and data of small real workloads.

using data::DataLoader;

LicenseText license_text() {
  std::string text;
  for (const char* name : {"Apache-2.0", "Artistic", "GFDL-1.3", "LGPL-2.1", "MPL-2.0", "GPL-3"})
    text += data::read_text(std::string("/usr/share/common-licenses/") + name) + "\n\n";
  const data::CharacterTokenizer tokenizer(text);
  const Tensor tokens = data::tokenize(tokenizer, text);
  // Other versions of these files may have more characters; those count as the last.
  data::TextSplit split =
      data::split_text(minimum(tokens, full({}, double(characters - 1), i64)), 0.1);
  return {split.train, split.validation};
}

namespace {

optim::LrSchedule warm_up_and_cosine(int64_t steps) {
  const int64_t rising = steps / 20 + 1;
  return optim::LrSchedule::warm_up(
      rising, optim::LrSchedule::cosine(std::max<int64_t>(steps - rising, 1), 0.05));
}

/// The first `count` images, normalized, [count, 1, 28, 28], and their labels.
data::Batch first_images(data::Split split, int64_t count) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < count; ++i) indices.push_back(i);
  return data::fashion_mnist({.split = split}).batch(indices);
}

std::function<DataLoader()> loader(const std::function<data::Batch()>& make, int64_t batch,
                                   bool trains, uint64_t seed) {
  return [make, batch, trains, seed] {
    const data::Batch all = make();
    return DataLoader(data::TensorDataset(all.inputs, all.targets),
                      {.batch_size = batch, .shuffle = trains, .drop_last = trains, .seed = seed});
  };
}

struct ResNet8 final : nn::Layer {
  nn::Conv2d conv1{1, 16, 3, {.padding = 1, .bias = false}};
  nn::BatchNorm2d bn1{16};
  nn::models::BasicBlock block1{16, 16, 1, false}, block2{16, 32, 2, false},
      block3{32, 64, 2, false};
  nn::Linear fc{64, 10};
  Tensor forward(const Tensor& x) const override {
    const Tensor y = block3(block2(block1(relu(bn1(conv1(x))))));
    return fc(mean(flatten(y, 2, -1), 2));
  }
  void describe(nn::Fields& field) override {
    field("conv1", conv1), field("bn1", bn1);
    field("block1", block1), field("block2", block2), field("block3", block3);
    field("fc", fc);
  }
};

Workload resnet8(uint64_t seed) {
  auto model = std::make_unique<ResNet8>();
  return {
      .task = train::classification(*model),
      .model = std::move(model),
      .train = loader([] { return first_images(data::Split::train, 8192); }, 64, true, seed),
      .validation = loader([] { return first_images(data::Split::test, 2000); }, 250, false, seed),
      .example = data::Batch{randn({64, 1, 28, 28}), randint(0, 10, {64})},
      .lr = 3e-3,
      .schedule = warm_up_and_cosine};
}

/// Predicts each next character.
struct TextLstm final : nn::Layer {
  nn::Embedding embedding{characters, 64};
  nn::Lstm lstm{64, 128, {.batch_first = true}};
  nn::Linear head{128, characters};
  /// tokens: i64 [n, time]; the result: logits [n, time, characters].
  Tensor forward(const Tensor& tokens) const override { return head(lstm(embedding(tokens)).y); }
  void describe(nn::Fields& field) override {
    field("embedding", embedding), field("lstm", lstm), field("head", head);
  }
};

Workload lstm_text(uint64_t seed) {
  constexpr int64_t context = 64;
  auto model = std::make_unique<TextLstm>();
  return {
      .task = train::language_modeling(*model),
      .model = std::move(model),
      .train =
          [seed] {
            return DataLoader(
                data::TextDataset(license_text().train, {.context = context, .stride = 7}),
                {.batch_size = 32, .shuffle = true, .drop_last = true, .seed = seed});
          },
      .validation =
          [seed] {
            return DataLoader(data::TextDataset(license_text().validation, {.context = context}),
                              {.batch_size = 32, .seed = seed});
          },
      .example =
          data::Batch{randint(0, characters, {32, context}), randint(0, characters, {32, context})},
      .lr = 1e-2,
      .schedule = warm_up_and_cosine,
      .clip_norm = 1};
}

/// Images x0 mixed with noise e at levels t uniform on [0, 1]: inputs are cos(t pi/2) x0 + sin(t
/// pi/2) e and t itself as a second channel, [count, 2, 28, 28]; targets are e.
data::Batch noisy_images(data::Split split, int64_t count, uint64_t noise) {
  const Tensor x = first_images(split, count).inputs;
  const RandomKey before = default_generator().state();
  manual_seed(noise);  // of the data, the same for every run
  const Tensor e = randn(x.shape()), t = rand({count, 1, 1, 1});
  default_generator().set_state(before);
  const Tensor angle = t * (std::acos(-1.0) / 2);
  const Tensor mixed = cos(angle) * x + sin(angle) * e;
  return {cat({mixed, t + zeros(x.shape())}, 1), e};
}

Workload diffusion(uint64_t seed) {
  auto model = std::make_unique<nn::models::UNet>(
      nn::models::UNetOptions{.channels = 2, .classes = 1, .width = 8, .depth = 2});
  return {.task = train::regression(*model),
          .model = std::move(model),
          .train = loader([] { return noisy_images(data::Split::train, 4096, 1); }, 32, true, seed),
          .validation =
              loader([] { return noisy_images(data::Split::test, 1000, 2); }, 250, false, seed),
          .example = data::Batch{randn({32, 2, 28, 28}), randn({32, 1, 28, 28})},
          .lr = 3e-3,
          .schedule = warm_up_and_cosine};
}

}  // namespace

std::vector<NamedWorkload> small_real_workloads() {
  return {{"resnet8", "three residual blocks on 8,192 images of Fashion-MNIST", resnet8, ""},
          {"lstm_text", "an LSTM of width 128 on the characters of Debian's license texts",
           lstm_text, ""},
          {"diffusion", "a U-Net that predicts the noise in 4,096 images of Fashion-MNIST",
           diffusion, "unet"}};
}

// The models with untuned shapes, and the table of their names.

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
