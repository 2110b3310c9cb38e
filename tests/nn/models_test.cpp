// Models: published sizes, output shapes, options, first values, and every error message. Their
// numbers are compared with PyTorch's in tests/pytorch.
#include <doctest/doctest.h>

#include <cmath>

#include <halftone/amp/autocast.h>
#include <halftone/autograd/ops.h>
#include <halftone/nn/layers.h>
#include <halftone/nn/models/gpt.h>
#include <halftone/nn/models/models.h>
#include <halftone/nn/module.h>

namespace halftone::test::models_test {

using namespace halftone::nn::models;

namespace {

/// The largest difference of logits when a text [2, 12] is read in pieces, over the largest logit.
double error_of_pieces(const Gpt& model, const std::vector<int64_t>& pieces) {
  const NoGrad no_grad;
  const Tensor text = randint(0, 50, {2, 12}), whole = model(text);
  KeyValueCache past;
  std::vector<Tensor> parts;
  for (const int64_t count : pieces)
    parts.push_back(model(slice(text, 1, past.length, past.length + count), past));
  CHECK(past.length == 12);
  const Tensor read = cat(parts, 1);
  CHECK(read.shape() == whole.shape());
  CHECK(read.dtype() == whole.dtype());
  return max(abs(cast(read - whole, f64))).item() / max(abs(cast(whole, f64))).item();
}

double standard_deviation(const Tensor& x) { return std::sqrt(var(x, {}, 0).item()); }

}  // namespace

TEST_CASE("residual networks have the published sizes") {
  CHECK(resnet18({.classes = 10, .cifar_stem = true}).parameter_count() == 11173962);
  CHECK(resnet18({.classes = 37}).parameter_count() == 11195493);
  CHECK(resnet18().parameter_count() == 11689512);
  CHECK(resnet34().parameter_count() == 21797672);
  CHECK(resnet50().parameter_count() == 25557032);
}

TEST_CASE("residual networks: shapes, stems, first values") {
  const ResNet large = resnet18({.channels = 1, .classes = 5, .width = 8});
  CHECK(large.conv1.weight.shape() == Shape{8, 1, 7, 7});
  CHECK(large(rand({2, 1, 64, 48})).shape() == Shape{2, 5});

  const ResNet small = resnet50({.classes = 3, .width = 8, .cifar_stem = true});
  CHECK(small.conv1.weight.shape() == Shape{8, 3, 3, 3});
  CHECK(small.fc.weight.shape() == Shape{3, 256});
  CHECK(small(rand({2, 3, 32, 32})).shape() == Shape{2, 3});

  manual_seed(5);
  const ResNet wide = resnet18({.classes = 10, .width = 16});
  // He's normal values for the outputs of a convolution: sqrt(2 / (out * kernel * kernel))
  CHECK(standard_deviation(nn::state_dict(wide).at("layer4.1.conv2.weight")) ==
        doctest::Approx(std::sqrt(2.0 / (128 * 9))).epsilon(0.01));
}

TEST_CASE("with zero_init_residual every block starts at the identity") {
  const auto last_norm = [](ResNet model, const char* name) {
    return nn::state_dict(model).at(name).to_vector<double>()[0];
  };
  CHECK(last_norm(resnet18({.width = 8}), "layer1.1.bn2.weight") == 1);
  CHECK(last_norm(resnet18({.width = 8, .zero_init_residual = true}), "layer1.1.bn2.weight") == 0);
  CHECK(last_norm(resnet50({.width = 8, .zero_init_residual = true}), "layer1.1.bn3.weight") == 0);
  const BasicBlock block(4, 4, 1, true);
  const Tensor x = rand({2, 4, 5, 5});
  CHECK(block(x).to_vector<double>() == x.to_vector<double>());
}

TEST_CASE("residual networks refuse sizes below one") {
  CHECK_THROWS_WITH_AS(resnet18({.width = 0}), "[Conv2d] out_channels is 0. Use 1 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(resnet18({.classes = 0, .width = 8}),
                       "[Linear] out_features is 0. Use 1 or more.", UsageError);
  CHECK_THROWS_WITH_AS(ResNet(ResNet::Block::basic, {1, 1, 0, 1}, {.width = 8}),
                       "[ResNet] a number of blocks is 0. Use 1 or more.", UsageError);
}

TEST_CASE("U-Net: shapes, names, and sizes that do not halve") {
  const UNet model({.channels = 1, .classes = 4, .width = 8, .depth = 2});
  CHECK(model(rand({2, 1, 12, 8})).shape() == Shape{2, 4, 12, 8});
  const nn::NamedTensors state = nn::state_dict(model);
  CHECK(state.at("down.2.conv1.weight").shape() == Shape{32, 16, 3, 3});
  CHECK(state.at("up.0.grow.weight").shape() == Shape{32, 16, 2, 2});
  CHECK(state.at("up.1.conv.conv1.weight").shape() == Shape{8, 16, 3, 3});
  const UNet bilinear({.classes = 1, .width = 4, .depth = 1, .transposed = false});
  CHECK(bilinear(rand({1, 3, 6, 10})).shape() == Shape{1, 1, 6, 10});
  CHECK(nn::state_dict(bilinear).at("up.0.narrow.weight").shape() == Shape{4, 8, 1, 1});
  CHECK_THROWS_WITH_AS(model(rand({2, 1, 10, 8})),
                       "[UNet] needs [n, channels, h, w] with h and w divisible by 4, got [2, 1, "
                       "10, 8] f32. Pad or resize the images.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(UNet({.depth = 0}), "[UNet] depth is 0. Use 1 or more.", UsageError);
}

TEST_CASE("the LSTM classifier reads tokens") {
  const LstmClassifier model(
      50, {.classes = 3, .width = 8, .hidden = 6, .layers = 2, .bidirectional = true});
  CHECK(model(randint(0, 50, {4, 9})).shape() == Shape{4, 3});
  CHECK(nn::state_dict(model).at("lstm.weight_ih_l1_reverse").shape() == Shape{24, 12});
  CHECK(model.fc.weight.shape() == Shape{3, 12});
  CHECK_THROWS_WITH_AS(LstmClassifier(0), "[Embedding] count is 0. Use 1 or more.", UsageError);
}

TEST_CASE("a GPT that keeps keys and values gives the same logits for a text in pieces") {
  manual_seed(3);
  Gpt model({.vocabulary = 50, .context = 16, .layers = 2, .heads = 3, .width = 24});
  for (const Tensor& p : model.parameters())  // GPT-2's first values make attention nearly uniform
    if (p.rank() == 2) nn::init::normal(p, 0, 0.3);
  const std::vector<std::vector<int64_t>> ways{{12}, std::vector<int64_t>(12, 1), {5, 1, 4, 2}};
  for (const std::vector<int64_t>& pieces : ways) {
    CHECK(error_of_pieces(model, pieces) <= 64 * epsilon(f32));
    const amp::Autocast region({.dtype = bf16});
    CHECK(error_of_pieces(model, pieces) <= 8 * epsilon(bf16));
  }
}

TEST_CASE("a GPT refuses caches that do not fit") {
  Gpt model({.vocabulary = 50, .context = 8, .layers = 2, .heads = 2, .width = 8});
  KeyValueCache past;
  const Tensor text = randint(0, 50, {2, 6});
  CHECK_THROWS_WITH_AS(model(text, past),
                       "[Gpt] a cache of keys and values has no gradients. Read with it under "
                       "NoGrad, or without it.",
                       UsageError);
  const NoGrad no_grad;
  model(text, past);
  CHECK_THROWS_WITH_AS(model(randint(0, 50, {2, 3}), past),
                       "[Gpt] the tokens are [2, 3], after 6 others. They must be [n, l], all "
                       "together at most the context 8.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(model(randint(0, 50, {1, 2}), past),
                       "[Gpt] the cache holds [2, 2, 8, 4] f32, these tokens need [1, 2, 8, 4] on "
                       "cpu. Go on with as many texts, or begin with an empty cache.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(Gpt({.vocabulary = 50, .context = 8, .layers = 1, .heads = 2, .width = 8})(
                           randint(0, 50, {2, 2}), past),
                       "[Gpt] the cache is of a model with 2 layers, this one has 1. Begin with an "
                       "empty one.",
                       UsageError);
  CHECK(past.length == 6);  // and does not change
  CHECK(model(randint(0, 50, {2, 2}), past).shape() == Shape{2, 2, 50});
}

TEST_CASE("a GPT refuses a cache that it has not filled") {
  Gpt model({.vocabulary = 50, .context = 8, .layers = 2, .heads = 2, .width = 8});
  const NoGrad no_grad;
  const Tensor text = randint(0, 50, {1, 2});
  const auto refuses = [&](KeyValueCache cache) { CHECK_THROWS_AS(model(text, cache), Error); };
  const KeyValues good{zeros({1, 2, 8, 4}), zeros({1, 2, 8, 4})};
  refuses({.length = 2, .layers = {}});
  refuses({.length = -1, .layers = {good, good}});
  refuses({.length = int64_t(1) << 62, .layers = {good, good}});
  refuses({.length = 2, .layers = {good}});
  refuses({.length = 2, .layers = {good, {}}});
  refuses({.length = 2, .layers = {good, {zeros({1, 2, 8, 4}), zeros({1, 2, 4, 4})}}});
  refuses({.length = 0, .layers = {{zeros({1}), zeros({1})}, good}});
  refuses({.length = 2, .layers = {good, {zeros({1, 2, 8, 4}, i64), zeros({1, 2, 8, 4}, i64)}}});
  KeyValueCache fits{.length = 2, .layers = {good, good}};
  CHECK(model(text, fits).shape() == Shape{1, 2, 50});
}

}  // namespace halftone::test::models_test
