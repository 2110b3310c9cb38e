// Layers: shapes, values against the functions they wrap, first values, and every error message.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include <halftone/autograd/ops.h>
#include <halftone/autograd/slots.h>
#include <halftone/nn/nn.h>

namespace halftone::test::layers_test {
namespace {

/// Requires that the largest magnitude is below the bound, but not far below.
void check_bound(const Tensor& x, double bound) {
  double largest = 0;
  for (const double value : x.to_vector<double>()) largest = std::max(largest, std::abs(value));
  CHECK(largest <= bound * (1 + 1e-6));
  CHECK(largest > 0.8 * bound);
}

Tensor column(const std::vector<double>& values) {
  return from_vector(values, {int64_t(values.size()), 1});
}

void check_close(const Tensor& x, const std::vector<double>& expected, double tolerance = 1e-6) {
  const std::vector<double> values = x.to_vector<double>();
  REQUIRE(values.size() == expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    CHECK(std::abs(values[i] - expected[i]) <= tolerance);
}

}  // namespace

TEST_CASE("Linear") {
  nn::Linear layer(100, 40);
  CHECK(layer.weight.shape() == Shape{40, 100});
  CHECK(layer.bias.shape() == Shape{40});
  check_bound(layer.weight, 0.1);
  check_bound(layer.bias, 0.1);
  CHECK(layer(ones({7, 2, 100})).shape() == Shape{7, 2, 40});
  CHECK_FALSE(nn::Linear(3, 2, {.bias = false}).bias.defined());
  layer.to(f64);
  CHECK(layer(ones({2, 100}, f64)).dtype() == f64);
  CHECK_THROWS_WITH_AS(nn::Linear(0, 2), "[Linear] in_features is 0. Use 1 or more.", UsageError);
  CHECK_THROWS_WITH_AS(nn::Linear(2, -1), "[Linear] out_features is -1. Use 1 or more.",
                       UsageError);
}

TEST_CASE("convolutions") {
  const nn::Conv2d conv(8, 32, 3, {.stride = 2, .padding = {1, 0}, .groups = 2});
  CHECK(conv.weight.shape() == Shape{32, 4, 3, 3});
  check_bound(conv.weight, 1.0 / 6);  // fan in 4 * 9
  check_bound(conv.bias, 1.0 / 6);
  CHECK(conv(ones({2, 8, 9, 9})).shape() == Shape{2, 32, 5, 4});

  const nn::Conv1d line(4, 6, 5, {.padding = 2, .dilation = 1, .bias = false});
  CHECK(line.weight.shape() == Shape{6, 4, 5});
  CHECK(line(ones({2, 4, 10})).shape() == Shape{2, 6, 10});

  const nn::ConvTranspose2d up(6, 8, {2, 4}, {.stride = {2, 4}, .groups = 2});
  CHECK(up.weight.shape() == Shape{6, 4, 2, 4});
  check_bound(up.weight, 1 / std::sqrt(32.0));
  CHECK(up(ones({1, 6, 3, 3})).shape() == Shape{1, 8, 6, 12});

  CHECK_THROWS_WITH_AS(
      nn::Conv2d(3, 4, 3, {.groups = 2}),
      "[Conv2d] in_channels 3 does not divide into 2 groups. Choose a divisor of 3.", ShapeError);
  CHECK_THROWS_WITH_AS(
      nn::ConvTranspose2d(4, 3, 3, {.groups = 2}),
      "[ConvTranspose2d] out_channels 3 does not divide into 2 groups. Choose a divisor of 3.",
      ShapeError);
  CHECK_THROWS_WITH_AS(nn::Conv1d(4, 4, 0), "[Conv1d] kernel height is 0. Use 1 or more.",
                       UsageError);
}

TEST_CASE("Embedding") {
  manual_seed(1);
  nn::Embedding table(5, 400, {.padding_index = 2});
  CHECK(table.weight.is_leaf());
  CHECK(table.weight.requires_grad());
  const Tensor y = table(from({{2, 0}, {1, 4}}, i64));
  CHECK(y.shape() == Shape{2, 2, 400});
  const std::vector<double> row = y.to_vector<double>();
  CHECK(std::all_of(row.begin(), row.begin() + 400, [](double value) { return value == 0; }));
  double squares = 0;
  for (const double value : row) squares += value * value;
  CHECK(squares / 1200 == doctest::Approx(1).epsilon(0.15));
  CHECK_THROWS_WITH_AS(
      nn::Embedding(5, 4, {.padding_index = 5}),
      "[Embedding] padding_index 5 is not one of the 5 rows. Use a row, or -1 for none.",
      UsageError);
  CHECK_THROWS_WITH_AS(nn::Embedding(0, 4), "[Embedding] count is 0. Use 1 or more.", UsageError);
}

TEST_CASE("LayerNorm, RmsNorm, GroupNorm") {
  const Tensor x = from({{1.0, 2, 3, 4}, {-2, 0, 0, 2}});
  const nn::LayerNorm norm(4, {.eps = 0});
  CHECK(norm.weight.to_vector<double>() == std::vector<double>(4, 1));
  CHECK(norm.bias.to_vector<double>() == std::vector<double>(4, 0));
  const double a = 1 / std::sqrt(1.25), b = std::sqrt(2.0);
  check_close(norm(x), {-1.5 * a, -0.5 * a, 0.5 * a, 1.5 * a, -b, 0, 0, b});
  CHECK_FALSE(nn::LayerNorm(4, {.bias = false}).bias.defined());
  CHECK_FALSE(nn::LayerNorm(Shape{2, 4}, {.affine = false}).weight.defined());
  CHECK_THROWS_WITH_AS(nn::LayerNorm(Shape{}),
                       "[LayerNorm] normalized_shape is empty. Name at least the last dimension.",
                       UsageError);
  CHECK_THROWS_WITH_AS(nn::LayerNorm(0),
                       "[LayerNorm] a size of normalized_shape is 0. Use 1 or more.", UsageError);

  const nn::RmsNorm rms(4);
  const double r = 1 / std::sqrt(7.5);
  check_close(rms(from({{1.0, 2, 3, 4}})), {r, 2 * r, 3 * r, 4 * r});
  // Without an explicit eps: the spacing of the dtype, here of f32, which is visible next to tiny
  // values.
  check_close(rms(full({1, 4}, 1e-4)), std::vector<double>(4, 1e-4 / std::sqrt(1e-8 + 0x1p-23)),
              1e-5);

  const nn::GroupNorm group(2, 4, {.eps = 0});
  CHECK(group.weight.shape() == Shape{4});
  check_close(group(from({{1.0, 3, -5, 5}})), {-1, 1, -1, 1});
  CHECK_THROWS_WITH_AS(
      nn::GroupNorm(3, 4),
      "[GroupNorm] channels 4 does not divide into 3 groups. Choose a divisor of 4.", ShapeError);
}

TEST_CASE("BatchNorm keeps running statistics while training, uses them in evaluation") {
  nn::BatchNorm1d norm(1, {.eps = 0});
  const Tensor x = column({1, 2, 3, 6});  // mean 3, variance 3.5 biased, 14/3 unbiased
  const double s = 1 / std::sqrt(3.5);
  check_close(norm(x), {-2 * s, -s, 0, 3 * s});
  CHECK(norm.running_mean.item() == doctest::Approx(0.3));
  CHECK(norm.running_var.item() == doctest::Approx(0.9 + 1.4 / 3));
  CHECK(norm.num_batches_tracked.item() == 1);
  norm.eval();
  const double t = 1 / std::sqrt(0.9 + 1.4 / 3);
  check_close(norm(x), {0.7 * t, 1.7 * t, 2.7 * t, 5.7 * t});
  CHECK(norm.num_batches_tracked.item() == 1);
}

TEST_CASE(
    "BatchNorm without momentum averages over all batches; without statistics it always uses the "
    "batch") {
  nn::BatchNorm1d average(1, {.momentum = std::nullopt});
  average(column({1, 3})), average(column({5, 9}));
  CHECK(average.running_mean.item() == doctest::Approx(4.5));
  CHECK(average.running_var.item() == doctest::Approx(5));

  nn::BatchNorm2d untracked(3, {.affine = false, .track_running_stats = false});
  untracked.eval();
  CHECK(untracked.named_buffers().empty());
  CHECK(untracked.parameters().empty());
  const Tensor y = untracked(rand({2, 3, 4, 4}) + 5.0);
  CHECK(std::abs(mean(y).item()) < 1e-5);
}

TEST_CASE("running statistics arrive although the model is bf16") {
  nn::Sequential model(nn::BatchNorm1d(1));
  model.to(bf16);
  auto& norm = dynamic_cast<nn::BatchNorm1d&>(model[0]);
  const Tensor x = cast(column({91, 93, 99, 101}), bf16);
  for (int i = 0; i < 200; ++i) model(x);
  CHECK(norm.running_mean.item() == doctest::Approx(96).epsilon(1e-6));
  CHECK(norm.running_var.item() == doctest::Approx(68.0 / 3).epsilon(1e-6));
  model.to(f64);
  CHECK(norm.running_mean.dtype() == f64);
}

TEST_CASE("update_batch_norm: averages over the given batches, under the weights of now") {
  nn::Sequential model(nn::Dropout(0.5), nn::BatchNorm1d(1), nn::BatchNorm1d(1));
  auto& norm = dynamic_cast<nn::BatchNorm1d&>(model[1]);
  model(column({100, 300}));
  model.eval(), model[0].training = true;
  const auto state = [&] {
    std::vector<double> values;
    for (const auto& [name, x] : model.named_buffers()) values.push_back(x.item());
    return values;
  };
  const std::vector<double> before = state();
  CHECK_THROWS_WITH_AS(nn::update_batch_norm(model, [] {}),
                       "[update_batch_norm] a batch norm of the model saw no batch. Call the model "
                       "with batches.",
                       UsageError);
  CHECK_THROWS_AS(nn::update_batch_norm(model,
                                        [&] {
                                          model(column({1, 3}));
                                          model(ones({2, 2}));
                                        }),
                  ShapeError);
  CHECK(state() == before);
  nn::update_batch_norm(model, [&] {
    CHECK(model[1].training);
    CHECK_FALSE(norm(column({1, 3})).requires_grad());
    norm(column({5, 9})), model[2](column({2, 4}));
  });
  CHECK(norm.running_mean.item() == doctest::Approx(4.5));
  CHECK(norm.running_var.item() == doctest::Approx(5));
  CHECK(norm.num_batches_tracked.item() == 2);
  CHECK(norm.momentum == 0.1);
  CHECK_FALSE(norm.training);
  CHECK(model[0].training);
  nn::Sequential without(nn::Linear(1, 1));
  nn::update_batch_norm(without, [] { FAIL("not called"); });
}

TEST_CASE("InstanceNorm tracks the averages over samples, and uses them in evaluation") {
  nn::InstanceNorm1d norm(1,
                          {.eps = 0, .momentum = 0.5, .affine = true, .track_running_stats = true});
  const Tensor x = from_vector({1.f, 3.f, 4.f, 8.f}, {2, 1, 2});  // means 2, 6; variances 2, 8
  check_close(norm(x), {-1, 1, -1, 1});
  CHECK(norm.running_mean.item() == doctest::Approx(0.5 * 4));
  CHECK(norm.running_var.item() == doctest::Approx(0.5 + 0.5 * 5));
  norm.eval();
  const double s = 1 / std::sqrt(3.0);
  check_close(norm(x), {-s, s, 2 * s, 6 * s});
  CHECK(norm(x[0]).shape() == Shape{1, 2});  // one sample
  std::vector<std::string> names;
  for (const auto& [name, tensor] : norm.named_parameters()) names.push_back(name);
  for (const auto& [name, tensor] : norm.named_buffers()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"weight", "bias", "running_mean", "running_var",
                                          "num_batches_tracked"});

  const nn::InstanceNorm2d plain(3);
  CHECK(plain.parameters().empty());
  CHECK(std::abs(mean(plain(rand({2, 3, 4, 4}) + 5.0)).item()) < 1e-5);
  CHECK_THROWS_WITH_AS(plain(rand({2, 3})),
                       "[instance_norm] x is [2, 3] f32, of rank 2. It must have rank 4.",
                       ShapeError);
  CHECK_THROWS_AS(nn::InstanceNorm2d(0), UsageError);
}

TEST_CASE("BatchNorm accepts low-precision images with f32 parameters, and checks ranks") {
  const nn::BatchNorm2d norm(2);
  CHECK(norm(rand({2, 2, 3, 3}, bf16)).dtype() == bf16);
  CHECK(norm.running_mean.dtype() == f32);
  CHECK(nn::BatchNorm1d(2)(rand({2, 2, 5})).shape() == Shape{2, 2, 5});
  CHECK_THROWS_WITH_AS(norm(rand({2, 2})),
                       "[BatchNorm2d] needs [n, channels, height, width], got [2, 2] f32. Vectors "
                       "and sequences take "
                       "BatchNorm1d.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(nn::BatchNorm1d(2)(rand({2, 2, 3, 3})),
                       "[BatchNorm1d] needs [n, channels] or [n, channels, length], got [2, 2, 3, "
                       "3] f32. Images take "
                       "BatchNorm2d.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(nn::BatchNorm2d(0), "[BatchNorm2d] channels is 0. Use 1 or more.",
                       UsageError);
}

TEST_CASE("Dropout scales the elements it keeps, and does nothing in evaluation") {
  manual_seed(3);
  nn::Dropout dropout(0.25);
  const std::vector<double> y = dropout(ones({4000})).to_vector<double>();
  const auto zeros = std::count(y.begin(), y.end(), 0.0);
  CHECK(zeros > 900);
  CHECK(zeros < 1100);
  CHECK(*std::max_element(y.begin(), y.end()) == doctest::Approx(4.0 / 3));
  dropout.eval();
  CHECK(dropout(ones({3})).to_vector<double>() == std::vector<double>(3, 1));
  CHECK_THROWS_WITH_AS(nn::Dropout(1.5),
                       "[Dropout] probability 1.5 is not between 0 and 1. Choose one that is.",
                       UsageError);
}

TEST_CASE("pooling and flattening") {
  const Tensor x = reshape(arange(1., 17.), {1, 1, 4, 4});
  CHECK(nn::MaxPool2d(2)(x).to_vector<double>() == std::vector<double>{6, 8, 14, 16});
  CHECK(nn::MaxPool2d(3, {.stride = 1})(x).to_vector<double>() ==
        std::vector<double>{11, 12, 15, 16});
  CHECK(nn::AvgPool2d({1, 4})(x).to_vector<double>() == std::vector<double>{2.5, 6.5, 10.5, 14.5});
  CHECK(nn::AvgPool2d(2, {.stride = 4, .padding = 1})(x).to_vector<double>() ==
        std::vector<double>{0.25, 1, 3.25, 4});
  CHECK(nn::AvgPool2d(2, {.stride = 4, .padding = 1, .count_include_pad = false})(x)
            .to_vector<double>() == std::vector<double>{1, 4, 13, 16});
  CHECK(nn::AdaptiveAvgPool2d(1)(x).to_vector<double>() == std::vector<double>{8.5});
  CHECK(nn::Flatten()(x).shape() == Shape{1, 16});
  CHECK(nn::Flatten(2)(x).shape() == Shape{1, 1, 16});
  CHECK(nn::Flatten(0, 2)(x).shape() == Shape{4, 4});
}

TEST_CASE("upsampling") {
  const Tensor x = reshape(from({1.0, 3, 5, 7}), {1, 1, 2, 2});
  CHECK(nn::Upsample({.scale_factor = Factors{1, 2}})(x).to_vector<double>() ==
        std::vector<double>{1, 1, 3, 3, 5, 5, 7, 7});
  const nn::Upsample corners({.size = 3, .mode = Interpolation::bilinear, .align_corners = true});
  CHECK(corners(x).to_vector<double>() == std::vector<double>{1, 2, 3, 3, 4, 5, 5, 6, 7});
}

TEST_CASE("activations are the functions of the same name") {
  const Tensor x = from({-2, -0.5, 0.25, 3});
  const auto same = [&](const nn::Layer& layer, const Tensor& y) {
    CHECK(layer(x).to_vector<double>() == y.to_vector<double>());
  };
  same(nn::Relu(), relu(x)), same(nn::LeakyRelu(0.2), leaky_relu(x, 0.2)),
      same(nn::Gelu(), gelu_erf(x));
  CHECK_THROWS_WITH_AS(nn::Gelu("sigmoid"),
                       "[Gelu] approximate is \"sigmoid\". Use \"none\" for the exact form, or "
                       "\"tanh\".",
                       UsageError);
  same(nn::Gelu("tanh"), gelu(x)), same(nn::Silu(), silu(x)), same(nn::Tanh(), halftone::tanh(x));
  same(nn::Sigmoid(), sigmoid(x)), same(nn::Softplus(2, 3), softplus(x, 2, 3));
}

TEST_CASE("Sequential") {
  nn::Sequential model(nn::Linear(4, 3), nn::Relu());
  nn::Linear& last = model.add(nn::Linear(3, 2));
  CHECK(model.size() == 3);
  CHECK(&model[-1] == &last);
  const Tensor x = rand({5, 4});
  CHECK(model(x).to_vector<double>() == last(relu(model[0](x))).to_vector<double>());
  CHECK(nn::Sequential()(x).body() == x.body());
  CHECK_THROWS_WITH_AS(model[3],
                       "[Sequential] there is no layer 3 among 3. Count from 0, or back from -1.",
                       UsageError);

  nn::Sequential outer(std::move(model), nn::Relu());
  CHECK(outer.named_parameters().front().first == "0.0.weight");
  nn::Sequential moved(std::move(outer));  // moves the module, does not nest it
  CHECK(moved.named_parameters().front().first == "0.0.weight");
}

}  // namespace halftone::test::layers_test
