// Layers: shapes, values against the functions they wrap, first values, and every error message.
#include <algorithm>
#include <cmath>

#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test::layers_test {
namespace {

/// Requires that the largest magnitude is below the bound, but not far below.
void check_bound(const Tensor& x, double bound) {
  double largest = 0;
  for (const double value : x.to_vector<double>()) largest = std::max(largest, std::abs(value));
  CHECK(largest <= bound * (1 + 1e-6));
  CHECK(largest > 0.8 * bound);
}

double norm_of(const Tensor& x) { return halftone::norm(x).item(); }

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
  const nn::ConvTranspose1d rows(
      6, 8, 4, {.stride = 3, .padding = 1, .output_padding = 2, .dilation = 2, .groups = 2});
  CHECK(rows.weight.shape() == Shape{6, 4, 4});
  check_bound(rows.weight, 0.25);
  check_bound(rows.bias, 0.25);
  const Tensor x = rand({2, 6, 5});
  const Tensor same = conv_transpose1d(x, rows.weight, rows.bias, rows.options);
  CHECK(rows(x).shape() == Shape{2, 8, 19});
  CHECK(rows(x).to_vector<double>() == same.to_vector<double>());
  CHECK_FALSE(nn::ConvTranspose1d(2, 2, 1, {.bias = false}).bias.defined());
  CHECK_THROWS_WITH_AS(
      nn::ConvTranspose1d(4, 3, 3, {.groups = 2}),
      "[ConvTranspose1d] out_channels 3 does not divide into 2 groups. Choose a divisor of 3.",
      ShapeError);
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

TEST_CASE("Dropout2d zeroes whole channels") {
  manual_seed(3);
  nn::Dropout2d dropout(0.25);
  const Tensor x = ones({40, 50, 2, 3}).set_requires_grad(), y = dropout(x);
  const std::vector<double> low = min(y, {2, 3}).to_vector<double>();
  CHECK(low == max(y, {2, 3}).to_vector<double>());
  const auto zeros = std::count(low.begin(), low.end(), 0.0);
  CHECK(zeros > 400);
  CHECK(zeros < 600);
  CHECK(*std::max_element(low.begin(), low.end()) == doctest::Approx(4.0 / 3));
  sum(y).backward();
  CHECK(x.grad().to_vector<double>() == y.to_vector<double>());
  CHECK(sum(nn::Dropout2d(1)(x)).item() == 0);
  const Tensor rows = dropout2d(ones({5, 4, 7}), 0.5);  // of rank 3: [n, channels, length]
  CHECK(min(rows, {2}).to_vector<double>() == max(rows, {2}).to_vector<double>());
  CHECK(dropout(ones({2, 3, 4, 5}, bf16)).dtype() == bf16);
  CHECK(dropout(ones({0, 3, 4, 5})).shape() == Shape{0, 3, 4, 5});
  dropout.eval();
  CHECK(dropout(x).body() == x.body());
  CHECK_THROWS_WITH_AS(nn::Dropout2d(-1),
                       "[Dropout2d] probability -1 is not between 0 and 1. Choose one that is.",
                       UsageError);
  CHECK_THROWS_WITH_AS(dropout2d(ones({3}), 0.5),
                       "[dropout2d] x is [3] f32. It must be [n, channels, ...].", ShapeError);
  CHECK_THROWS_WITH_AS(dropout2d(x, 2), "[dropout2d] p is 2. It must be on [0, 1].", UsageError);
  CHECK_THROWS_AS(dropout2d(ones({2, 2}, i64), 0.5), DTypeError);
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
  CHECK(nn::AdaptiveMaxPool2d({2, 1})(x).to_vector<double>() == std::vector<double>{8, 16});
  const Tensor rows = reshape(arange(1., 9.), {1, 1, 8});
  using Values = std::vector<double>;
  CHECK(nn::MaxPool1d(3)(rows).to_vector<double>() == Values{3, 6});
  CHECK(nn::MaxPool1d(2, {.stride = 3, .padding = 1, .dilation = 3, .ceil_mode = true})(rows)
            .to_vector<double>() == Values{3, 6, 6});
  CHECK(nn::AvgPool1d(2)(rows).to_vector<double>() == Values{1.5, 3.5, 5.5, 7.5});
  CHECK(nn::AvgPool1d(3, {.stride = 4, .padding = 1})(rows).to_vector<double>() == Values{1, 5});
  CHECK(nn::AvgPool1d(3, {.stride = 4, .padding = 1, .count_include_pad = false})(rows)
            .to_vector<double>() == Values{1.5, 5});
  CHECK(nn::AdaptiveAvgPool1d(2)(rows[0]).to_vector<double>() == Values{2.5, 6.5});
  CHECK_THROWS_WITH_AS(
      nn::AdaptiveAvgPool1d(2)(x),
      "[adaptive_avg_pool1d] x is [1, 1, 4, 4] f32, of rank 4. It must have rank 3.", ShapeError);
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
  same(nn::Softmax(0), softmax(x, 0)), same(nn::Glu(), glu(x)),
      same(nn::Prelu(), prelu(x, full({1}, 0.25)));
  CHECK(nn::Identity()(x).body() == x.body());
  CHECK(nn::Glu(0)(ones({4, 3})).shape() == Shape{2, 3});
}

TEST_CASE("Prelu learns a slope for each channel") {
  nn::Prelu layer(3, 0.5);
  CHECK(layer.named_parameters()[0].first == "weight");
  sum(layer(from({{-1, 2, -3}, {-4, 5, 6}}) * 1.0)).backward();
  CHECK(layer.weight.grad().to_vector<double>() == std::vector<double>{-5, 0, -3});
  CHECK_THROWS_WITH_AS(nn::Prelu(0), "[Prelu] num_parameters is 0. Use 1 or more.", UsageError);
}

TEST_CASE("ModuleList names its modules 0, 1, 2, ...") {
  nn::ModuleList<> mixed(nn::Linear(3, 2), nn::Relu());
  nn::Linear& last = mixed.add(nn::Linear(2, 2, false));
  CHECK(mixed.size() == 3);
  CHECK(&mixed[-1] == &last);
  Tensor x = ones({1, 3});
  for (const nn::Layer& layer : mixed) x = layer(x);
  CHECK(x.shape() == Shape{1, 2});
  std::vector<std::string> names;
  for (const auto& [name, tensor] : mixed.named_parameters()) names.push_back(name);
  CHECK(names == std::vector<std::string>{"0.weight", "0.bias", "2.weight"});
  nn::ModuleList<nn::Gru> cells;
  for (int i = 0; i < 20; ++i) cells.add(nn::Gru(2, 2));
  const nn::ModuleList<nn::Gru> moved(std::move(cells));
  CHECK(moved[19](ones({1, 1, 2})).h.shape() == Shape{1, 1, 2});
  CHECK(moved.named_parameters().back().first == "19.bias_hh_l0");
  CHECK_THROWS_WITH_AS(
      mixed[3],
      "[ModuleList] layer 3 is asked for, and there are 3. Count from 0, or back from -1.",
      UsageError);
  CHECK_THROWS_AS(nn::ModuleList<>()[0], UsageError);
}

TEST_CASE("WeightNorm and SpectralNorm: PyTorch's names, first values, clones") {
  const auto names_of = [](const nn::Module& module) {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : nn::state_dict(module)) names.push_back(name);
    return names;
  };
  manual_seed(2);
  nn::Linear plain(4, 3);
  const std::vector<double> before = plain.weight.to_vector<double>();
  nn::WeightNorm norm(std::move(plain));
  CHECK(names_of(norm) == std::vector<std::string>{"bias", "parametrizations.weight.original0",
                                                   "parametrizations.weight.original1"});
  CHECK(norm.named_parameters().size() == 3);
  CHECK(norm.original0.shape() == Shape{3, 1});
  check_close(norm.weight(), before);
  CHECK(nn::WeightNorm(nn::Conv2d(2, 3, 2), -1).original0.shape() == Shape{});
  CHECK(nn::WeightNorm(nn::ConvTranspose1d(2, 3, 2), 1).original0.shape() == Shape{1, 3, 1});
  CHECK_THROWS_AS(nn::WeightNorm(nn::Linear(2, 2), 2), ShapeError);
  CHECK(nn::WeightNorm(nn::Embedding(4, 3)).part() == "embedding");

  nn::SpectralNorm spectral(nn::Conv1d(2, 3, 2));
  CHECK(names_of(spectral) == std::vector<std::string>{"bias", "parametrizations.weight.0._u",
                                                       "parametrizations.weight.0._v",
                                                       "parametrizations.weight.original"});
  CHECK(spectral.named_parameters().size() == 2);
  CHECK(nn::SpectralNorm(nn::ConvTranspose2d(2, 3, {4, 5})).u.shape() == Shape{3});
  CHECK(nn::SpectralNorm(nn::Conv2d(2, 3, {4, 5}), {.dim = 2}).v.shape() == Shape{30});
  CHECK_THROWS_WITH_AS(nn::SpectralNorm(nn::Linear(2, 2), {.n_power_iterations = 0}),
                       "[SpectralNorm] n_power_iterations is 0. Use 1 or more.", UsageError);
  // Many iterations find the largest singular value, and evaluation changes no buffer.
  const Tensor x = rand({2, 2, 5});
  for (int i = 0; i < 100; ++i) spectral(x);
  const Tensor rows = reshape(spectral.weight(), {3, 4});
  Tensor square = matmul(rows, transpose(rows, 0, 1));
  for (int i = 0; i < 6; ++i) square = matmul(square, square);  // to the power 64
  CHECK(std::pow(norm_of(square), 1.0 / 128) == doctest::Approx(1).epsilon(0.01));
  spectral.eval();
  const std::vector<double> u = spectral.u.to_vector<double>();
  spectral(x);
  CHECK(spectral.u.to_vector<double>() == u);
  nn::SpectralNorm copy = nn::clone(spectral, nn::Conv1d(2, 3, 2));
  CHECK(copy(x).to_vector<double>() == spectral(x).to_vector<double>());
  // A checkpointed call repeats the iteration of the first run, and leaves its vectors.
  const auto step = [&](nn::SpectralNorm<nn::Conv1d>& layer, bool checkpointed) {
    layer.train(), layer.zero_grad();
    const auto call = [&](const std::vector<Tensor>& in) { return layer(in[0]); };
    const Tensor in = x.detach().set_requires_grad();
    sum(halftone::square(checkpointed ? checkpoint(call, {in}) : call({in}))).backward();
    std::vector<double> values = layer.original.grad().to_vector<double>();
    for (const double value : layer.u.to_vector<double>()) values.push_back(value);
    return values;
  };
  nn::load_state_dict(spectral, nn::state_dict(nn::SpectralNorm(nn::Conv1d(2, 3, 2))));
  nn::load_state_dict(copy, nn::state_dict(spectral));
  CHECK(step(copy, true) == step(spectral, false));
  // Parameters train in a region, and two calls before one backward use vectors of their own.
  spectral.train();
  const Tensor loss = amp::autocast(bf16, [&] { return sum(spectral(x)) + sum(spectral(x)); });
  loss.backward();
  CHECK(spectral.original.grad().dtype() == f32);
  spectral.to(f64);
  CHECK(spectral(rand({2, 2, 5}, f64)).dtype() == f64);
}

TEST_CASE("Sequential") {
  nn::Sequential model(nn::Linear(4, 3), nn::Relu());
  nn::Linear& last = model.add(nn::Linear(3, 2));
  CHECK(model.size() == 3);
  CHECK(&model[-1] == &last);
  const Tensor x = rand({5, 4});
  CHECK(model(x).to_vector<double>() == last(relu(model[0](x))).to_vector<double>());
  CHECK(nn::Sequential()(x).body() == x.body());
  CHECK_THROWS_WITH_AS(
      model[3],
      "[Sequential] layer 3 is asked for, and there are 3. Count from 0, or back from -1.",
      UsageError);

  nn::Sequential outer(std::move(model), nn::Relu());
  CHECK(outer.named_parameters().front().first == "0.0.weight");
  nn::Sequential moved(std::move(outer));  // moves the module, does not nest it
  CHECK(moved.named_parameters().front().first == "0.0.weight");
}

}  // namespace halftone::test::layers_test

// Recurrent layers: names, shapes, first values, states, precision under autocast, and every error
// message. Their numbers are compared with PyTorch's in tests/pytorch/operations_test.cpp.

namespace halftone::test::rnn_test {
namespace {

std::vector<std::string> names_of(const nn::Module& module) {
  std::vector<std::string> names;
  for (const auto& entry : module.named_parameters()) names.push_back(entry.first);
  return names;
}
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("recurrent layers have PyTorch's names, shapes and first values") {
  CHECK(names_of(nn::Lstm(3, 4)) ==
        Names{"weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"});
  CHECK(names_of(nn::Gru(3, 4, {.layers = 2, .bias = false, .bidirectional = true})) ==
        Names{"weight_ih_l0", "weight_hh_l0", "weight_ih_l0_reverse", "weight_hh_l0_reverse",
              "weight_ih_l1", "weight_hh_l1", "weight_ih_l1_reverse", "weight_hh_l1_reverse"});
  const nn::Lstm lstm(3, 64, {.layers = 2, .bidirectional = true});
  CHECK(lstm.directions[1].weight_ih.shape() == Shape{256, 3});
  CHECK(lstm.directions[2].weight_ih.shape() == Shape{256, 128});
  CHECK(lstm.directions[3].weight_hh.shape() == Shape{256, 64});
  CHECK(nn::Gru(3, 4).directions[0].bias_hh.shape() == Shape{12});
  const std::vector<double> values = lstm.directions[3].weight_hh.to_vector<double>();
  const auto [low, high] = std::ranges::minmax(values);
  CHECK(high <= 0.125);  // 1 / sqrt(64)
  CHECK(high > 0.12);
  CHECK(low < -0.12);
}

TEST_CASE("recurrent layers: shapes of outputs and states") {
  const nn::LstmOutput result =
      nn::Lstm(3, 4, {.layers = 2, .batch_first = true, .bidirectional = true})(rand({5, 7, 3}));
  CHECK(result.y.shape() == Shape{5, 7, 8});
  CHECK(result.h.shape() == Shape{4, 5, 4});
  CHECK(result.c.shape() == Shape{4, 5, 4});
  const nn::Gru gru(3, 4);
  const Tensor x = rand({7, 5, 3});
  const nn::GruOutput whole = gru(x);
  CHECK(whole.y.shape() == Shape{7, 5, 4});
  // A sequence in two parts, with the state passed on, equals the whole sequence.
  const nn::GruOutput first = gru(slice(x, 0, 0, 3));
  const nn::GruOutput rest = gru(slice(x, 0, 3, 7), first.h);
  CHECK(rest.h.to_vector<double>() == whole.h.to_vector<double>());
}

TEST_CASE("dropout is between the layers, in training") {
  manual_seed(1);
  nn::Lstm layer(3, 4, {.layers = 2, .dropout = 0.5});
  const Tensor x = rand({4, 2, 3});
  const auto output = [&] { return layer(x).y.to_vector<double>(); };
  CHECK(output() != output());
  layer.eval();
  CHECK(output() == output());
  nn::Lstm single(3, 4, {.dropout = 0.5});
  CHECK(single(x).y.to_vector<double>() == single(x).y.to_vector<double>());
}

TEST_CASE("under autocast recurrent layers run in low precision, their gradients arrive in f32") {
  nn::Lstm lstm(3, 4, {.layers = 2});
  nn::Gru gru(3, 4);
  const Tensor x = rand({3, 2, 3});
  const Tensor loss = amp::autocast(bf16, [&] {
    const nn::LstmOutput result = lstm(x);
    CHECK(result.y.dtype() == bf16);
    CHECK(result.c.dtype() == bf16);
    const nn::GruOutput other = gru(x);
    CHECK(other.y.dtype() == bf16);
    return sum(result.y) + sum(result.c) + sum(other.h);
  });
  loss.backward();
  for (const Tensor& p : lstm.parameters()) CHECK(p.grad().dtype() == f32);
  for (const Tensor& p : gru.parameters()) CHECK(p.grad().dtype() == f32);
  // PyTorch's CPU lists contain only the LSTM.
  amp::autocast(amp::CastPolicy::preset("pytorch-cpu").with(bf16), [&] {
    CHECK(lstm(x).y.dtype() == bf16);
    CHECK(gru(x).y.dtype() == f32);
  });
  for (const std::string_view preset : amp::CastPolicy::preset_names())
    amp::autocast(amp::CastPolicy::preset(preset).with(bf16), [&] { lstm(x), gru(x); });
}

TEST_CASE("a batch of 0: shapes as always, gradients of 0") {
  const nn::Lstm lstm(3, 4, {.layers = 2, .batch_first = true, .bidirectional = true});
  const nn::Gru gru(3, 4);
  const auto [y, h, c] = lstm(rand({0, 5, 3}));
  CHECK(y.shape() == Shape{0, 5, 8});
  CHECK(h.shape() == Shape{4, 0, 4});
  CHECK(c.shape() == Shape{4, 0, 4});
  const auto of_gru = gru(rand({5, 0, 3}));
  CHECK(of_gru.y.shape() == Shape{5, 0, 4});
  CHECK(of_gru.h.shape() == Shape{1, 0, 4});
  (sum(y) + sum(h) + sum(c) + sum(of_gru.y) + sum(of_gru.h)).backward();
  for (const nn::Module* module :
       {static_cast<const nn::Module*>(&lstm), static_cast<const nn::Module*>(&gru)})
    for (const auto& [name, x] : const_cast<nn::Module*>(module)->named_parameters()) {
      CAPTURE(name);
      for (const double g : x.grad().to_vector<double>()) CHECK(g == 0);
    }
}

TEST_CASE("recurrent layers refuse inputs that do not fit") {
  CHECK_THROWS_WITH_AS(nn::Lstm(0, 4), "[Lstm] the input size is 0. Use 1 or more.", UsageError);
  CHECK_THROWS_WITH_AS(nn::Gru(4, 0), "[Gru] the hidden size is 0. Use 1 or more.", UsageError);
  CHECK_THROWS_WITH_AS(nn::Gru(4, 4, {.layers = 0}), "[Gru] layers is 0. Use 1 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(nn::Lstm(4, 4, {.dropout = 2}),
                       "[Lstm] dropout 2 is not between 0 and 1. Choose one that is.", UsageError);
  CHECK_THROWS_WITH_AS(nn::Lstm(3, 4)(rand({5, 2})),
                       "[Lstm] needs [time, n, 3], got [5, 2] f32. Reshape it, or see batch_first.",
                       ShapeError);
  CHECK_THROWS_WITH_AS(
      nn::Gru(3, 4, {.batch_first = true})(rand({5, 2, 4})),
      "[Gru] needs [n, time, 3], got [5, 2, 4] f32. Reshape it, or see batch_first.", ShapeError);
  CHECK_THROWS_WITH_AS(nn::Gru(3, 4)(Tensor{}), "[Gru] x is undefined. Pass a tensor.", UsageError);
  CHECK_THROWS_WITH_AS(nn::Lstm(3, 4)(rand({5, 2, 3}), zeros({2, 2, 4})),
                       "[Lstm] h0 is [2, 2, 4] f32. It must be [1, 2, 4].", ShapeError);
  CHECK_THROWS_WITH_AS(nn::Lstm(3, 4)(rand({5, 2, 3}), {}, zeros({1, 2, 3})),
                       "[Lstm] c0 is [1, 2, 3] f32. It must be [1, 2, 4].", ShapeError);
  CHECK_THROWS_WITH_AS(nn::Rnn(3, 4, {}, "sigmoid"),
                       "[Rnn] nonlinearity is \"sigmoid\". Use \"tanh\" or \"relu\".", UsageError);
  CHECK_THROWS_WITH_AS(nn::Rnn(3, 4)(rand({0, 2, 3})),
                       "[Rnn] x is [0, 2, 3] f32. It must have steps.", ShapeError);
  CHECK_THROWS_WITH_AS(nn::Rnn(3, 4)(rand({5, 2, 3}), zeros({2, 2, 4})),
                       "[Rnn] h0 is [2, 2, 4] f32. It must be [1, 2, 4].", ShapeError);
  const Tensor x = rand({5, 2, 3});
  CHECK_THROWS_WITH_AS(nn::Gru(3, 4)(x, {}, from({5, 0})),
                       "[Gru] lengths[1] is 0. It must be from 1 to the 5 steps of x.", UsageError);
  CHECK_THROWS_WITH_AS(nn::Lstm(3, 4)(x, {}, {}, from({6, 1})),
                       "[Lstm] lengths[0] is 6. It must be from 1 to the 5 steps of x.",
                       UsageError);
  CHECK_THROWS_WITH_AS(nn::Rnn(3, 4)(x, {}, from({1, 2, 3})),
                       "[Rnn] lengths is [3] i64. It must be integers [2].", ShapeError);
  CHECK_THROWS_WITH_AS(nn::Rnn(3, 4)(x, {}, from({1.0, 2.0})),
                       "[Rnn] lengths is [2] f32. It must be integers [2].", ShapeError);
}

TEST_CASE("an Rnn: names, shapes, precision") {
  nn::Rnn rnn(3, 4, {.layers = 2, .batch_first = true, .bidirectional = true, .dropout = 0.5},
              "relu");
  CHECK(names_of(rnn) == names_of(nn::Lstm(3, 4, {.layers = 2, .bidirectional = true})));
  CHECK(rnn.directions[2].weight_ih.shape() == Shape{4, 8});
  const nn::RnnOutput result = rnn(rand({5, 7, 3}));
  CHECK(result.y.shape() == Shape{5, 7, 8});
  CHECK(result.h.shape() == Shape{4, 5, 4});
  CHECK(rnn(rand({0, 7, 3})).y.shape() == Shape{0, 7, 8});
  CHECK(amp::autocast(bf16, [&] { return rnn(rand({5, 7, 3})).y.dtype(); }) == bf16);
}

TEST_CASE("elements after the end of a sequence are not read") {
  manual_seed(4);
  const Tensor lengths = cast(from({3, 5, 1}), i32);
  const Tensor valid = unsqueeze(unsqueeze(arange(5), 1) < lengths, 2);
  const Tensor x = randn({5, 3, 3});
  const auto results = [&](const auto& layer, double padding) {
    const Tensor in = where(valid, x, padding).set_requires_grad();
    const_cast<std::remove_cvref_t<decltype(layer)>&>(layer).zero_grad();
    std::vector<Tensor> out;
    if constexpr (std::same_as<std::remove_cvref_t<decltype(layer)>, nn::Lstm>)
      out = layer(in, {}, {}, lengths).tensors();
    else out = layer(in, {}, lengths).tensors();
    Tensor total = scalar(0);
    for (const Tensor& y : out) total = total + sum(y * y);
    total.backward();
    out.push_back(in.grad());
    for (const Tensor& p : layer.parameters()) out.push_back(p.grad());
    std::vector<double> numbers;
    for (const Tensor& y : out)
      for (const double value : y.template to_vector<double>()) numbers.push_back(value);
    return numbers;
  };
  const nn::RecurrentOptions both{.layers = 2, .bidirectional = true};
  const auto check = [&](const auto& layer) {
    const std::vector<double> want = results(layer, 0);
    CHECK(std::ranges::all_of(want, [](double value) { return std::isfinite(value); }));
    CHECK(results(layer, std::numeric_limits<double>::quiet_NaN()) == want);
    CHECK(results(layer, std::numeric_limits<double>::infinity()) == want);
  };
  check(nn::Lstm(3, 4, both)), check(nn::Gru(3, 4, both));
  check(nn::Rnn(3, 4, both)), check(nn::Rnn(3, 4, both, "relu"));
  // States of a short sequence do not grow while a long one runs.
  nn::Rnn growing(1, 1, {.bias = false}, "relu");
  nn::init::constant(growing.directions[0].weight_hh, 1e10);
  const Tensor ends = growing(ones({40, 2, 1}), {}, from({1, 2})).h;
  sum(ends).backward();
  CHECK(std::isfinite(growing.directions[0].weight_hh.grad().item()));
}

TEST_CASE("sequences of unequal length give what each gives alone") {
  manual_seed(5);
  const std::vector<int64_t> ends{3, 7, 1, 6};
  const nn::RecurrentOptions both{.layers = 2, .bidirectional = true};
  const auto near = [](const Tensor& a, const Tensor& b) {
    REQUIRE(a.shape() == b.shape());
    const std::vector<double> left = a.to_vector<double>(), right = b.to_vector<double>();
    double largest = 0;
    for (std::size_t i = 0; i < left.size(); ++i) {
      CHECK(std::isfinite(left[i]));
      largest = std::max(largest, std::abs(left[i] - right[i]));
    }
    CHECK(largest < 1e-4);
  };
  const auto check = [&](auto layer) {
    constexpr bool lstm = std::same_as<decltype(layer), nn::Lstm>;
    const auto run = [&](const Tensor& x, const Tensor& lengths) {
      if constexpr (lstm) return layer(x, {}, {}, lengths).tensors();
      else return layer(x, {}, lengths).tensors();
    };
    const auto gradients = [&](const std::vector<Tensor>& parts) {
      layer.zero_grad();
      Tensor total = scalar(0);
      for (const Tensor& y : parts) total = total + sum(square(y));
      total.backward();
      std::vector<Tensor> result;
      for (const Tensor& p : layer.parameters()) result.push_back(p.grad());
      return result;
    };
    const Tensor x = randn({7, 4, 5});
    const std::vector<Tensor> together = run(x, from_vector(ends, {4}));
    std::vector<Tensor> alone;
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t end = ends[std::size_t(i)];
      const std::vector<Tensor> one = run(slice(slice(x, 1, i, i + 1), 0, 0, end), {});
      near(slice(slice(together[0], 1, i, i + 1), 0, 0, end), one[0]);
      for (std::size_t k = 1; k < one.size(); ++k) near(slice(together[k], 1, i, i + 1), one[k]);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    const std::vector<Tensor> got = gradients(together), want = gradients(alone);
    for (std::size_t i = 0; i < got.size(); ++i) near(got[i] / 100, want[i] / 100);
  };
  // States of 37 numbers: whole vectors and a rest.
  check(nn::Lstm(5, 37, both)), check(nn::Gru(5, 37, both));
  check(nn::Rnn(5, 37, both)), check(nn::Rnn(5, 37, both, "relu"));
}

TEST_CASE("sequences of unequal length: shorter dtypes, second gradients") {
  const Tensor lengths = from({2, 4});
  for (const DType dtype : {bf16, f16}) {
    nn::Lstm lstm(3, 21, {.bidirectional = true});
    lstm.to(dtype);
    const nn::LstmOutput result = lstm(randn({4, 2, 3}, dtype), {}, {}, lengths);
    (sum(result.y) + sum(result.c)).backward();
    for (const double value : lstm.directions[1].weight_hh.grad().to_vector<double>())
      CHECK(std::isfinite(value));
    for (const Tensor& y : result.tensors()) {
      CHECK(y.dtype() == dtype);
      for (const double value : y.to_vector<double>()) CHECK(std::isfinite(value));
    }
    CHECK(sum(slice(select(result.y, 1, 0), 0, 2, 4)).item() == 0);
  }
  nn::Lstm lstm(2, 2, {.bidirectional = true});
  nn::Rnn rnn(2, 2, {.bidirectional = true});
  lstm.to(f64), rnn.to(f64);
  const Tensor x = randn({4, 2, 2}, f64).set_requires_grad();
  const auto penalty = [&](const Tensor& in) {
    const nn::LstmOutput result = lstm(in, {}, {}, lengths);
    const Tensor y = sum(result.y) + sum(result.c * result.h) + sum(rnn(in, {}, lengths).y);
    return sum(square(autograd::grad(y, {in}, {.create_graph = true})[0]));
  };
  penalty(x).backward();
  const std::vector<double> got = x.grad().to_vector<double>();
  const double h = 1e-5;
  for (const int64_t i : {0, 5, 9, 11, 15}) {
    const Tensor step = reshape(cast(arange(16) == i, f64), x.shape()) * h;
    const auto at = [&](const Tensor& in) {
      return penalty(in.detach().set_requires_grad()).item();
    };
    CHECK(got[std::size_t(i)] ==
          doctest::Approx((at(x.detach() + step) - at(x.detach() - step)) / (2 * h)).epsilon(1e-5));
  }
}

}  // namespace halftone::test::rnn_test

// Columns scaled to mean 0 and deviation 1, and the way back, also through a file.

namespace halftone::test::standardizer_test {

using Values = std::vector<double>;
static Values values(const Tensor& x) { return x.to_vector<double>(); }

TEST_CASE("columns are standardized, and converted back") {
  const Tensor x = from({{1.0, 5, 2}, {3, 5, 4}});
  const auto standard = nn::Standardizer::of(x);
  CHECK(values(standard(x)) == Values{-1, 0, -1, 1, 0, 1});
  CHECK(values(standard.undo(standard(x))) == values(x));
  CHECK_THROWS_AS(standard(ones({2, 2})), ShapeError);
  CHECK_THROWS_AS(standard.undo(ones({2, 2})), ShapeError);
  CHECK_THROWS_AS(nn::Standardizer::of(ones({3})), ShapeError);
  CHECK_THROWS_AS(nn::Standardizer::of(empty({0, 3})), ShapeError);
}

TEST_CASE("a constant column becomes 0, for any number") {
  for (const double constant : {0.1, 1e-30, -3e30, 1.0 / 3})
    for (const int64_t rows : {1, 3, 1000}) {
      const Tensor x = full({rows, 1}, constant);
      const auto standard = nn::Standardizer::of(x);
      CHECK(values(standard(x)) == Values(std::size_t(rows), 0));
      CHECK(values(standard.undo(standard(x))) == values(x));
    }
}

TEST_CASE("a model's file holds its means and deviations, which no optimizer trains") {
  struct Model final : nn::Module {
    nn::Standardizer scale{2};
    nn::Linear last{2, 1};
    void describe(nn::Fields& field) override { field("scale", scale), field("last", last); }
  };
  const TemporaryDirectory directory;
  const Tensor x = from({{1.0, 50}, {3, 70}, {5, 60}});
  Model model;
  CHECK(values(model.scale(x)) == values(x));
  model.scale = nn::Standardizer::of(x);
  CHECK(model.parameters().size() == 2);
  nn::save(model, directory / "model.safetensors");
  Model other;
  nn::load(other, directory / "model.safetensors");
  CHECK(values(other.scale(x)) == values(model.scale(x)));
}

}  // namespace halftone::test::standardizer_test

// Initializers: ranges and moments of the formulas of torch.nn.init, reproducibility, and error
// messages.

namespace halftone::test::init_test {
namespace init = halftone::nn::init;

namespace {

struct Moments {
  double mean = 0, std = 0, low = 0, high = 0;
};

Moments moments_of(const Tensor& x) {
  const std::vector<double> values = x.to_vector<double>();
  Moments m;
  for (const double value : values) m.mean += value / double(values.size());
  for (const double value : values)
    m.std += (value - m.mean) * (value - m.mean) / double(values.size());
  m.std = std::sqrt(m.std);
  m.low = *std::min_element(values.begin(), values.end());
  m.high = *std::max_element(values.begin(), values.end());
  return m;
}

void check_uniform(const Tensor& x, double low, double high) {
  const Moments m = moments_of(x);
  const double width = high - low;
  CHECK(m.low >= low);
  CHECK(m.high <= high);
  CHECK(m.low < low + 0.01 * width);
  CHECK(m.high > high - 0.01 * width);
  CHECK(std::abs(m.mean - 0.5 * (low + high)) < 0.02 * width);
  CHECK(m.std == doctest::Approx(width / std::sqrt(12.0)).epsilon(0.03));
}

void check_normal(const Tensor& x, double mean, double std) {
  const Moments m = moments_of(x);
  CHECK(std::abs(m.mean - mean) < 0.05 * std);
  CHECK(m.std == doctest::Approx(std).epsilon(0.03));
  CHECK(m.high > mean + 2.5 * std);
}

}  // namespace

TEST_CASE("constants") {
  CHECK(init::ones(empty({2})).to_vector<double>() == std::vector<double>{1, 1});
  CHECK(init::zeros(ones({2})).to_vector<double>() == std::vector<double>{0, 0});
  CHECK(init::constant(empty({2}, bf16), 0.5).to_vector<double>() == std::vector<double>{0.5, 0.5});
}

TEST_CASE("uniform and normal, in every floating dtype") {
  manual_seed(11);
  for (const DType dtype : {f64, f32, f16, bf16}) {
    check_uniform(init::uniform(empty({100, 100}, dtype), -2, 1), -2, 1);
    check_normal(init::normal(empty({100, 100}, dtype), 3, 0.5), 3, 0.5);
  }
}

TEST_CASE("fans and gains") {
  CHECK(init::fans_of(empty({6, 5})).in == 5);
  CHECK(init::fans_of(empty({6, 5})).out == 6);
  CHECK(init::fans_of(empty({8, 4, 3, 2})).in == 24);
  CHECK(init::fans_of(empty({8, 4, 3, 2})).out == 48);
  using enum init::Nonlinearity;
  CHECK(init::gain_of(linear) == 1);
  CHECK(init::gain_of(sigmoid) == 1);
  CHECK(init::gain_of(init::Nonlinearity::tanh) == doctest::Approx(5.0 / 3));
  CHECK(init::gain_of(relu) == doctest::Approx(std::sqrt(2.0)));
  CHECK(init::gain_of(leaky_relu) == doctest::Approx(std::sqrt(2 / 1.0001)));
  CHECK(init::gain_of(leaky_relu, 1) == doctest::Approx(1));
  CHECK(init::gain_of(selu) == 0.75);
}

TEST_CASE("xavier and kaiming") {
  manual_seed(12);
  const auto weight = [] { return empty({60, 20, 3, 3}); };  // fan in 180, fan out 540
  const double bound = std::sqrt(6.0 / 720);
  check_uniform(init::xavier_uniform(weight(), 2), -2 * bound, 2 * bound);
  check_normal(init::xavier_normal(weight()), 0, std::sqrt(2.0 / 720));
  check_uniform(init::kaiming_uniform(weight()), -std::sqrt(6.0 / 180), std::sqrt(6.0 / 180));
  check_uniform(init::kaiming_uniform(weight(), {.slope = std::sqrt(5.0)}), -std::sqrt(1.0 / 180),
                std::sqrt(1.0 / 180));
  check_normal(init::kaiming_normal(
                   weight(), {.fan = init::Fan::out, .nonlinearity = init::Nonlinearity::relu}),
               0, std::sqrt(2.0 / 540));
}

TEST_CASE("truncated normal") {
  manual_seed(13);
  const Moments m = moments_of(init::trunc_normal(empty({20000})));
  CHECK(m.low >= -2);
  CHECK(m.high <= 2);
  CHECK(m.low < -1.95);
  CHECK(std::abs(m.mean) < 0.02);
  CHECK(m.std == doctest::Approx(0.8796).epsilon(0.02));  // of N(0, 1) cut at +-2
  const Moments shifted = moments_of(init::trunc_normal(empty({20000}), 1, 0.02, -2, 2));
  CHECK(shifted.mean == doctest::Approx(1).epsilon(0.001));
  CHECK(shifted.std == doctest::Approx(0.02).epsilon(0.03));
}

TEST_CASE("orthogonal") {
  for (const Shape& shape : {Shape{4, 4}, Shape{3, 7}, Shape{6, 2, 2}}) {
    const std::vector<double> q = init::orthogonal(empty(shape, f64), 2).to_vector<double>();
    const int64_t rows = shape[0], columns = int64_t(q.size()) / rows;
    const bool wide = rows <= columns;
    for (int64_t a = 0; a < std::min(rows, columns); ++a) {
      for (int64_t b = 0; b < std::min(rows, columns); ++b) {
        double dot = 0;
        for (int64_t i = 0; i < std::max(rows, columns); ++i)
          dot += wide ? q[std::size_t(a * columns + i)] * q[std::size_t(b * columns + i)]
                      : q[std::size_t(i * columns + a)] * q[std::size_t(i * columns + b)];
        CHECK(std::abs(dot - (a == b ? 4 : 0)) < 1e-12);
      }
    }
  }
}

TEST_CASE("initializers repeat with the seed, bump the version, and write through views") {
  manual_seed(5);
  const std::vector<double> first = init::normal(empty({9})).to_vector<double>();
  CHECK(init::normal(empty({9})).to_vector<double>() != first);
  manual_seed(5);
  CHECK(init::normal(empty({9})).to_vector<double>() == first);

  Tensor x = zeros({3, 2});
  const uint64_t version = x.storage()->version();
  init::uniform(x.view_as({3}, {2}, 1), 1, 2);  // the second column
  CHECK(x.storage()->version() > version);
  for (const int64_t row : {0, 1, 2}) {
    CHECK(x.at({row, 0}) == 0);
    CHECK(x.at({row, 1}) >= 1);
  }
  CHECK(init::normal(empty({0, 3})).numel() == 0);
}

TEST_CASE("initializers' errors") {
  CHECK_THROWS_WITH_AS(init::uniform(empty({2}), 1, 0),
                       "[init.uniform] low 1 is above high 0. Swap them.", UsageError);
  CHECK_THROWS_WITH_AS(init::normal(empty({2}), 0, -1),
                       "[init.normal] std -1 is negative. Use 0 or more.", UsageError);
  CHECK_THROWS_WITH_AS(init::trunc_normal(empty({2}), 0, 0),
                       "[init.trunc_normal] std 0 is not positive. Use more than 0.", UsageError);
  CHECK_THROWS_WITH_AS(init::trunc_normal(empty({2}), 0, 1, 2, -2),
                       "[init.trunc_normal] low 2 is above high -2. Swap them.", UsageError);
  CHECK_THROWS_WITH_AS(
      init::kaiming_normal(empty({2})),
      "[init] fans need a weight [out, in, ...], got [2] f32. Use uniform or normal for vectors.",
      ShapeError);
  CHECK_THROWS_WITH_AS(
      init::orthogonal(empty({2})),
      "[init.orthogonal] needs a matrix or more, got [2] f32. Use normal for vectors.", ShapeError);
}

}  // namespace halftone::test::init_test

// Models: published sizes, output shapes, options, first values, and every error message. Their
// numbers are compared with PyTorch's in tests/pytorch.

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

TEST_CASE("the vision transformer: shapes, and sizes that do not fit") {
  const Vit model({.classes = 3, .image = 8, .patch = 4, .layers = 1, .heads = 2, .width = 4});
  CHECK(model(rand({2, 3, 8, 8})).shape() == Shape{2, 3});
  CHECK_THROWS_WITH_AS(model(rand({2, 3, 12, 8})),
                       "[Vit] the images are [2, 3, 12, 8], not [n, 3, 8, 8]. Resize them "
                       "(data/transforms.h), or make the model for them.",
                       ShapeError);
  CHECK_THROWS_AS(model(rand({2, 1, 8, 8})), ShapeError);
  CHECK_THROWS_AS(Vit({.image = 10, .patch = 4}), Error);
  CHECK_THROWS_WITH_AS(Vit({.image = 8, .patch = 4, .layers = 0}),
                       "[Vit] layers is 0. Use 1 or more.", UsageError);
}

TEST_CASE("a router scores in f32, and has one expert at least") {
  const nn::Router router(4, 3);
  const Tensor x = rand({2, 4});
  CHECK(router(cast(x, bf16)).dtype() == f32);
  CHECK(router(x).shape() == Shape{2, 3});
  CHECK_THROWS_WITH_AS(nn::Router(4, 0), "[Router] experts is 0. Use 1 or more.", UsageError);
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
