// The models and data of small real workloads.
#include <halftone/autograd/ops.h>
#include <halftone/core/factory.h>
#include <halftone/core/random.h>
#include <halftone/core/tensor.h>
#include <halftone/data/dataset.h>
#include <halftone/data/sets.h>
#include <halftone/data/text.h>
#include <halftone/lab/workloads/small_real.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/nn.h>

namespace halftone::lab {

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

}  // namespace halftone::lab
