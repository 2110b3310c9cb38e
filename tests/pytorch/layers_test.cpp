// Convolutions, pools and normalizations against PyTorch: tests/fixtures/pytorch/layer_fixtures.py
// has the same options.
#include <algorithm>

#include <halftone/halftone.h>

#include "fixture.h"

namespace halftone::test::layers_test {
namespace {

Call conv2d_with(Conv2dOptions options) {
  return [options](const Inputs& in) { return conv2d(in["x"], in["w"], in["b"], options); };
}
Call conv1d_with(Conv1dOptions options) {
  return [options](const Inputs& in) { return conv1d(in["x"], in["w"], in["b"], options); };
}
Call transpose_with(ConvTranspose2dOptions options) {
  return
      [options](const Inputs& in) { return conv_transpose2d(in["x"], in["w"], in["b"], options); };
}
Call max_pool_with(PoolOptions options) {
  return [options](const Inputs& in) { return max_pool2d(in["x"], options); };
}
Call avg_pool_with(PoolOptions options) {
  return [options](const Inputs& in) { return avg_pool2d(in["x"], options); };
}
Call adaptive_to(Pair output) {
  return [output](const Inputs& in) { return adaptive_avg_pool2d(in["x"], output); };
}
Call layer_norm_over(Shape shape, double eps = 1e-5) {
  return [=](const Inputs& in) { return layer_norm(in["x"], shape, in["w"], in["b"], eps); };
}
Call group_norm_of(int64_t groups, double eps = 1e-5) {
  return [=](const Inputs& in) { return group_norm(in["x"], groups, in["w"], in["b"], eps); };
}
Call rms_norm_over(Shape shape, double eps) {
  return [=](const Inputs& in) { return rms_norm(in["x"], shape, in["w"], eps); };
}

/// Three training steps and one in evaluation. The tensors of step i are named x<i>, y<i>, ...
template <class Layer>
void compare_batch_norm(const NamedTensors& stored, std::optional<double> momentum, DType dtype) {
  Layer layer(stored.at("w").numel(), {.momentum = momentum});
  layer.to(dtype);
  nn::load_state_dict(layer, {{"weight", stored.at("w")}, {"bias", stored.at("b")}},
                      {.strict = false});
  for (int step = 0; step < 4; ++step) {
    CAPTURE(step);
    const auto at = [&](const char* name) { return stored.at(name + std::to_string(step)); };
    layer.train(step < 3);
    layer.zero_grad();
    const Tensor x = cast(at("x"), dtype).set_requires_grad();
    const Tensor y = layer(x);
    y.backward(cast(at("dy"), dtype));
    const double allowed =
        tolerance(dtype, x.numel(), largest_magnitude(at("x")) * largest_magnitude(at("dw")));
    CHECK(difference(y, at("y"), allowed) == "");
    CHECK(difference(x.grad(), at("dx"), allowed) == "");
    CHECK(difference(layer.weight.grad(), at("dw"), allowed) == "");
    CHECK(difference(layer.bias.grad(), at("db"), allowed) == "");
    CHECK(difference(layer.running_mean, at("mean"), allowed) == "");
    CHECK(difference(layer.running_var, at("var"), allowed) == "");
    CHECK(layer.num_batches_tracked.item() == std::min(step + 1, 3));
  }
}

}  // namespace

TEST_CASE("pytorch: convolutions") {
  const auto cases = load_cases("convolution");
  const Calls table{
      {"conv2d_plain", conv2d_with({})},
      {"conv2d_no_bias", conv2d_with({})},
      {"conv2d_one_by_one", conv2d_with({})},
      {"conv2d_stride", conv2d_with({.stride = {2, 3}})},
      {"conv2d_padding", conv2d_with({.padding = {1, 2}})},
      {"conv2d_dilation", conv2d_with({.dilation = {2, 3}})},
      {"conv2d_groups", conv2d_with({.padding = 1, .groups = 2})},
      {"conv2d_depthwise", conv2d_with({.padding = 1, .groups = 4})},
      {"conv2d_everything",
       conv2d_with({.stride = {2, 1}, .padding = {2, 1}, .dilation = 2, .groups = 2})},
      {"conv2d_stride_leaves_rest", conv2d_with({.stride = 3, .padding = 1})},
      {"conv1d_plain", conv1d_with({})},
      {"conv1d_everything", conv1d_with({.stride = 2, .padding = 2, .dilation = 3, .groups = 2})},
      {"transpose_plain", transpose_with({})},
      {"transpose_no_bias", transpose_with({})},
      {"transpose_stride", transpose_with({.stride = {2, 3}, .padding = {1, 0}})},
      {"transpose_output_padding",
       transpose_with({.stride = {2, 3}, .padding = 1, .output_padding = {1, 2}})},
      {"transpose_groups", transpose_with({.stride = 2, .groups = 2})},
      {"transpose_everything", transpose_with({.stride = {2, 3},
                                               .padding = {1, 2},
                                               .output_padding = {1, 0},
                                               .dilation = {2, 3},
                                               .groups = 3})},
  };
  CHECK(forgotten(cases, table) == "");
  compare_all(cases, table);
}

TEST_CASE("pytorch: pools") {
  const auto cases = load_cases("pool");
  const Pair one = 1;
  const PoolOptions overlapping{.kernel = {3, 2}, .stride = Pair{2, 1}, .padding = one};
  PoolOptions exclusive = overlapping;
  exclusive.count_include_pad = false;
  const Calls table{
      {"max", max_pool_with({.kernel = 2})},
      {"max_overlap", max_pool_with({.kernel = {3, 2}, .stride = Pair{1, 2}, .padding = 1})},
      {"max_ties", max_pool_with({.kernel = 3, .stride = Pair{2}, .padding = 1})},
      {"max_negative_borders", max_pool_with({.kernel = 3, .stride = Pair{3}, .padding = 1})},
      {"avg", avg_pool_with({.kernel = 2})},
      {"avg_padding", avg_pool_with(overlapping)},
      {"avg_exclude_padding", avg_pool_with(exclusive)},
      {"adaptive_even", adaptive_to({3, 2})},
      {"adaptive_uneven", adaptive_to({3, 5})},
      {"adaptive_global", adaptive_to(1)},
      {"adaptive_larger", adaptive_to({5, 7})},
      {"adaptive_rows", [](const Inputs& in) { return adaptive_avg_pool1d(in["x"], 4); }},
  };
  CHECK(forgotten(cases, table) == "");
  compare_all(cases, table);
}

TEST_CASE("pytorch: normalizations of single samples") {
  const auto cases = load_cases("norm");
  compare_all(cases, {
                         {"layer", layer_norm_over({10})},
                         {"layer_plain", layer_norm_over({10}, 1e-3)},
                         {"layer_two_dims", layer_norm_over({4, 5})},
                         {"layer_offset", layer_norm_over({8})},
                         {"group", group_norm_of(3)},
                         {"group_plain", group_norm_of(2, 1e-2)},
                         {"group_instance", group_norm_of(4)},
                         {"group_one", group_norm_of(1)},
                         {"rms", rms_norm_over({10}, 1e-6)},
                         {"rms_plain", rms_norm_over({4, 5}, 1e-2)},
                     });
  CHECK(cases.size() == 18);  // the others are batch, weight and spectral norms
}

TEST_CASE("pytorch: weight norm") {
  const auto cases = load_cases("norm");
  const Calls table{
      {"weight_linear",
       [](const Inputs& in) { return with_inputs(nn::WeightNorm(nn::Linear(4, 3)), in)(in["x"]); }},
      {"weight_whole",
       [](const Inputs& in) {
         return with_inputs(nn::WeightNorm(nn::Linear(4, 3), -1), in)(in["x"]);
       }},
      {"weight_conv", [](const Inputs& in) {
         return with_inputs(nn::WeightNorm(nn::Conv2d(2, 3, 2), 1), in)(in["x"]);
       }}};
  compare_all(cases, table);
  const NamedTensors& stored = cases.at("weight_conv");
  nn::Conv2d conv(2, 3, 2);
  copy_into(conv.weight, stored.at("start"));
  const nn::WeightNorm norm(std::move(conv), 1);
  CHECK(difference(norm.original0, stored.at("length"), tolerance(f32, 6, 1)) == "");
  CHECK(difference(norm.weight(), stored.at("start"), tolerance(f32, 6, 1)) == "");
}

namespace {
/// Three training steps and one in evaluation. The tensors of step i are named x<i>, y<i>, ...
template <class Layer>
void compare_spectral_norm(const NamedTensors& stored, Layer layer, DType dtype) {
  layer.to(dtype);
  const std::string prefix = "parametrizations.weight.";
  nn::load_state_dict(layer, {{"bias", stored.at("bias")},
                              {prefix + "original", stored.at("original")},
                              {prefix + "0._u", stored.at("_u")},
                              {prefix + "0._v", stored.at("_v")}});
  for (int step = 0; step < 4; ++step) {
    CAPTURE(step);
    const auto at = [&](const char* name) { return stored.at(name + std::to_string(step)); };
    layer.train(step < 3);
    layer.zero_grad();
    const Tensor x = cast(at("x"), dtype).set_requires_grad();
    const Tensor y = layer(x);
    y.backward(cast(at("dy"), dtype));
    const double allowed = tolerance(dtype, x.numel(), largest_magnitude(at("dw")));
    CHECK(difference(y, at("y"), allowed) == "");
    CHECK(difference(x.grad(), at("dx"), allowed) == "");
    CHECK(difference(layer.original.grad(), at("dw"), allowed) == "");
    CHECK(difference(layer.u, at("u"), allowed) == "");
    CHECK(difference(layer.v, at("v"), allowed) == "");
  }
}
}  // namespace

TEST_CASE("pytorch: spectral norm and its vectors") {
  const auto cases = load_cases("norm");
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    for (const DType dtype : {f64, f32}) {
      CAPTURE(backend);
      CAPTURE(facts(dtype).name);
      compare_spectral_norm(cases.at("spectral_linear"), nn::SpectralNorm(nn::Linear(4, 3)), dtype);
      compare_spectral_norm(
          cases.at("spectral_transposed"),
          nn::SpectralNorm(nn::ConvTranspose1d(2, 3, 2), {.n_power_iterations = 2}), dtype);
    }
  }
}

TEST_CASE("pytorch: batch norm and its running statistics") {
  const auto cases = load_cases("norm");
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    CAPTURE(backend);
    for (const DType dtype : {f64, f32}) {
      CAPTURE(facts(dtype).name);
      compare_batch_norm<nn::BatchNorm2d>(cases.at("batch_images"), 0.3, dtype);
      compare_batch_norm<nn::BatchNorm1d>(cases.at("batch_rows"), 0.3, dtype);
      compare_batch_norm<nn::BatchNorm1d>(cases.at("batch_average"), std::nullopt, dtype);
    }
  }
}

}  // namespace halftone::test::layers_test

// Initial values against PyTorch's. The two generators differ, so the test compares moments and
// extremes of two samples of the same size; the tolerances are those of sampling.

namespace halftone::test::initializers_test {
namespace init = halftone::nn::init;

namespace {

struct Moments {
  double mean, std, low, high;
};

Moments moments_of(const Tensor& x) {
  const std::vector<double> values = x.to_vector<double>();
  double sum = 0, squares = 0;
  for (const double value : values) sum += value, squares += value * value;
  const double count = double(values.size()), mean = sum / count;
  const auto [low, high] = std::ranges::minmax(values);
  return {mean, std::sqrt(squares / count - mean * mean), low, high};
}

enum class Extremes { bounded, open };

/// Two independent samples of n numbers: means differ by std sqrt(2 / n), standard deviations by at
/// most std / sqrt(n), each times 5 for a chance of one in a million. Extremes of a bounded sample
/// are within 20 / n of the range of its bounds, except once in e^20.
void compare(const std::map<std::string, NamedTensors>& cases, const std::string& name,
             const Tensor& x, Extremes extremes) {
  CAPTURE(name);
  const std::vector<double> want = cases.at(name).at("moments").to_vector<double>();
  const Moments got = moments_of(x);
  const double root = std::sqrt(double(x.numel()));
  CHECK(std::abs(got.mean - want[0]) <= 5 * std::sqrt(2.0) * want[1] / root);
  CHECK(std::abs(got.std - want[1]) <= 5 * want[1] / root);
  if (extremes == Extremes::open) return;
  const double slack = (want[3] - want[2]) * 20 / double(x.numel());
  CHECK(std::abs(got.low - want[2]) <= slack);
  CHECK(std::abs(got.high - want[3]) <= slack);
}

}  // namespace

TEST_CASE("pytorch: initial values of layers") {
  manual_seed(3);
  const auto cases = load_cases("init");
  const auto layer = [&](const std::string& name, const auto& made) {
    compare(cases, name + "_weight", made.weight, Extremes::bounded);
    compare(cases, name + "_bias", made.bias, Extremes::bounded);
  };
  layer("linear", nn::Linear(300, 200));
  layer("conv2d", nn::Conv2d(32, 64, {3, 5}));
  layer("conv2d_groups", nn::Conv2d(64, 512, 3, {.groups = 8}));
  layer("conv1d", nn::Conv1d(48, 96, 5));
  layer("conv_transpose2d", nn::ConvTranspose2d(48, 64, 3));
  layer("conv_transpose2d_groups", nn::ConvTranspose2d(64, 256, 3, {.groups = 4}));
  compare(cases, "embedding_weight", nn::Embedding(400, 64).weight, Extremes::open);
}

TEST_CASE("pytorch: initializers") {
  manual_seed(4);
  const auto cases = load_cases("init");
  const std::pair<std::string, Tensor> weights[]{{"matrix", empty({300, 200})},
                                                 {"kernel", empty({64, 32, 3, 5})}};
  using init::Fan, init::Nonlinearity;
  for (const auto& [name, x] : weights) {
    compare(cases, "xavier_uniform_" + name, init::xavier_uniform(x, 1.5), Extremes::bounded);
    compare(cases, "xavier_normal_" + name, init::xavier_normal(x, 1.5), Extremes::open);
    compare(cases, "kaiming_uniform_" + name, init::kaiming_uniform(x, {.slope = 0.2}),
            Extremes::bounded);
    compare(cases, "kaiming_uniform_fan_out_" + name,
            init::kaiming_uniform(x, {.fan = Fan::out, .nonlinearity = Nonlinearity::relu}),
            Extremes::bounded);
    compare(cases, "kaiming_normal_" + name,
            init::kaiming_normal(x, {.nonlinearity = Nonlinearity::tanh}), Extremes::open);
    compare(cases, "orthogonal_" + name, init::orthogonal(x, 2), Extremes::open);
  }
  compare(cases, "trunc_normal", init::trunc_normal(weights[0].second, 0.5, 2, -1, 3),
          Extremes::bounded);

  const std::vector<double> gains = cases.at("gains").at("values").to_vector<double>();
  REQUIRE(gains.size() == 6);
  for (int i = 0; i < 6; ++i)
    CHECK(init::gain_of(Nonlinearity(i)) == doctest::Approx(gains[std::size_t(i)]));
}

}  // namespace halftone::test::initializers_test

// Unusual arguments, and operations that consist of others, against PyTorch:
// tests/fixtures/pytorch/argument_fixtures.py has the same operations by name.

namespace halftone::test::arguments_test {
namespace {

using Table = std::map<std::string, Operation>;

template <class F> Operation result_of(F f) {
  return [f](const Arguments& in) { return Results{f(in)}; };
}
Results both(const Sorted& sorted) { return {sorted.values, sorted.indices}; }
Dims dims_of(const Arguments& in) { return Dims(std::span<const int64_t>(in.n)); }
DType dtype_of(const Arguments& in) {
  return std::array{f64, f32, f16, bf16, i64, i32, u8}[std::size_t(in.n[0])];
}

Table numbers() {
  return {
      {"clamp_low", result_of([](const Arguments& in) { return clamp(in.a, -1); })},
      {"clamp_high", result_of([](const Arguments& in) { return clamp(in.a, {}, 1); })},
      {"clamp_tensors", result_of([](const Arguments& in) { return clamp(in.a, in.b, in.c); })},
      {"clamp_low_tensor", result_of([](const Arguments& in) { return clamp(in.a, in.b); })},
      {"clamp_high_tensor", result_of([](const Arguments& in) { return clamp(in.a, {}, in.b); })},
      {"clamp_low_3", result_of([](const Arguments& in) { return clamp(in.a, 3); })},
      {"clamp_whole", result_of([](const Arguments& in) { return clamp(in.a, -2, 5); })},
      {"clamp_fraction", result_of([](const Arguments& in) { return clamp(in.a, {}, 2.5); })},
      {"pow_3", result_of([](const Arguments& in) { return pow(in.a, 3); })},
      {"pow_half", result_of([](const Arguments& in) { return pow(abs(in.a), 0.5); })},
      {"two_to_the", result_of([](const Arguments& in) { return pow(2, in.a); })},
      {"pow", result_of([](const Arguments& in) { return pow(in.a, in.b); })},
      {"matmul", result_of([](const Arguments& in) { return matmul(in.a, in.b); })},
      {"erf", result_of([](const Arguments& in) { return erf(in.a); })},
      {"logsigmoid", result_of([](const Arguments& in) { return logsigmoid(in.a); })},
      {"selu", result_of([](const Arguments& in) { return selu(in.a); })},
      {"glu", result_of([](const Arguments& in) { return glu(in.a, in.dim(0)); })},
      {"lerp_03", result_of([](const Arguments& in) { return lerp(in.a, in.b, 0.3); })},
      {"lerp_08", result_of([](const Arguments& in) { return lerp(in.a, in.b, 0.8); })},
      {"lerp", result_of([](const Arguments& in) { return lerp(in.a, in.b, in.c); })},
      {"nan_to_num", result_of([](const Arguments& in) { return nan_to_num(in.a); })},
      {"nan_to_num_given",
       result_of([](const Arguments& in) { return nan_to_num(in.a, 1, 2, 3); })},
  };
}

Table reductions() {
  Table table{
      {"sum_dtype", result_of([](const Arguments& in) { return sum(in.a, dtype_of(in)); })},
      {"sum_dim_dtype",
       result_of([](const Arguments& in) { return sum(in.a, 1, false, dtype_of(in)); })},
      {"cumsum_dtype",
       result_of([](const Arguments& in) { return cumsum(in.a, 0, dtype_of(in)); })},
      {"prod_dtype",
       result_of([](const Arguments& in) { return prod(in.a, 1, false, dtype_of(in)); })},
      {"mean_dtype",
       result_of([](const Arguments& in) { return mean(in.a, 0, false, dtype_of(in)); })},
      {"softmax_dtype",
       result_of([](const Arguments& in) { return softmax(in.a, 1, dtype_of(in)); })},
      {"log_softmax_dtype",
       result_of([](const Arguments& in) { return log_softmax(in.a, 1, dtype_of(in)); })},
      {"logsumexp", result_of([](const Arguments& in) { return logsumexp(in.a, dims_of(in)); })},
      {"logsumexp_keep",
       result_of([](const Arguments& in) { return logsumexp(in.a, dims_of(in), true); })},
      {"max", [](const Arguments& in) { return both(max_with_indices(in.a, in.dim(0))); }},
      {"min", [](const Arguments& in) { return both(min_with_indices(in.a, in.dim(0))); }},
      {"median", [](const Arguments& in) { return both(median(in.a, in.dim(0))); }},
      {"median_all", result_of([](const Arguments& in) { return median(in.a); })},
      {"cumprod", result_of([](const Arguments& in) { return cumprod(in.a, in.dim(0)); })},
      {"prod", result_of([](const Arguments& in) { return prod(in.a, 1); })},
      {"prod_all", result_of([](const Arguments& in) { return prod(in.a); })},
      {"quantiles", result_of([](const Arguments& in) {
         return quantile(in.a, std::vector<double>{0.1, 0.5, 0.9}, 0);
       })},
  };
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto& [name, p] : std::map<std::string, double>{{"0", 0},
                                                             {"0.5", 0.5},
                                                             {"1", 1},
                                                             {"1.5", 1.5},
                                                             {"2", 2},
                                                             {"3", 3},
                                                             {"inf", infinity},
                                                             {"-inf", -infinity},
                                                             {"-1", -1},
                                                             {"-2", -2}})
    table["norm_" + name] =
        result_of([p](const Arguments& in) { return vector_norm(in.a, p, {1}, true); });
  for (const auto& [name, q] :
       std::map<std::string, double>{{"0.0", 0}, {"0.3", 0.3}, {"0.5", 0.5}, {"1.0", 1}}) {
    table["quantile_" + name] = result_of([q](const Arguments& in) { return quantile(in.a, q); });
    table["quantile_rows_" + name] =
        result_of([q](const Arguments& in) { return quantile(in.a, q, 1, true); });
  }
  return table;
}

Table losses() {
  Table table{
      {"bce_both", result_of([](const Arguments& in) {
         return bce_with_logits(in.a, in.b, {.weight = in.c, .pos_weight = in.c * 3});
       })},
      {"gaussian_full", result_of([](const Arguments& in) {
         return gaussian_nll_loss(in.a, in.b, in.c, {.full = true});
       })},
      {"gaussian_eps", result_of([](const Arguments& in) {
         return gaussian_nll_loss(in.a, in.b, in.c, {.eps = 0.5});
       })},
      {"triplet_options", result_of([](const Arguments& in) {
         return triplet_margin_loss(in.a, in.b, in.c,
                                    {.margin = 0.5, .p = 3, .eps = 1e-3, .swap = true});
       })},
      {"triplet_vector",
       result_of([](const Arguments& in) { return triplet_margin_loss(in.a, in.b, in.c); })},
      {"normalize", result_of([](const Arguments& in) { return normalize(in.a); })},
      {"normalize_1_0", result_of([](const Arguments& in) { return normalize(in.a, 1, 0); })},
      {"cross_entropy", result_of([](const Arguments& in) {
         return cross_entropy(
             in.a, from({0, 2}),
             {.label_smoothing = double(in.n[0]) / 10, .reduction = LossReduction::none});
       })},
  };
  for (const auto& [name, how] :
       std::map<std::string, LossReduction>{{"mean", LossReduction::mean},
                                            {"sum", LossReduction::sum},
                                            {"none", LossReduction::none}}) {
    table["bce_weight_" + name] = result_of([how](const Arguments& in) {
      return bce_with_logits(in.a, in.b, {.weight = in.c, .reduction = how});
    });
    table["bce_positive_" + name] = result_of([how](const Arguments& in) {
      return bce_with_logits(in.a, in.b, {.pos_weight = in.c, .reduction = how});
    });
    table["gaussian_" + name] = result_of([how](const Arguments& in) {
      return gaussian_nll_loss(in.a, in.b, in.c, {.reduction = how});
    });
    table["triplet_" + name] = result_of([how](const Arguments& in) {
      return triplet_margin_loss(in.a, in.b, in.c, {.reduction = how});
    });
  }
  return table;
}

LossReduction reduction_of(int64_t code) {
  return std::array{LossReduction::mean, LossReduction::sum,
                    LossReduction::none}[std::size_t(code)];
}

/// The loss of a fixture whose n has time, sequences, classes, blank, zero_infinity, reduction, and
/// the lengths.
Tensor ctc_of(const Tensor& logs, const Arguments& in) {
  const auto at = in.n.begin() + 6, middle = at + in.n[1];
  return ctc_loss(logs, in.b, std::vector(at, middle), std::vector(middle, in.n.end()),
                  {in.n[3], in.n[4] != 0, reduction_of(in.n[5])});
}

Table composed_losses() {
  Table table{
      {"cosine_vector",
       result_of([](const Arguments& in) { return cosine_embedding_loss(in.a, in.b, in.c); })},
      {"kl_batchmean", result_of([](const Arguments& in) {
         return kl_div(in.a, in.b, false, LossReduction::batchmean);
       })},
      {"ctc", result_of([](const Arguments& in) { return ctc_of(log_softmax(in.a, -1), in); })},
      {"ctc_logs", result_of([](const Arguments& in) { return ctc_of(in.a, in); })},
      {"ctc_one", result_of([](const Arguments& in) {
         return ctc_loss(in.a, in.b, {6}, {2}, {.blank = 1, .reduction = LossReduction::none});
       })},
  };
  for (const int64_t code : {0, 1, 2}) {
    const LossReduction how = reduction_of(code);
    const std::string name = std::array{"mean", "sum", "none"}[std::size_t(code)];
    table["cosine_" + name] = result_of(
        [how](const Arguments& in) { return cosine_embedding_loss(in.a, in.b, in.c, 0.2, how); });
    table["ranking_" + name] = result_of(
        [how](const Arguments& in) { return margin_ranking_loss(in.a, in.b, in.c, 0.3, how); });
    table["hinge_" + name] = result_of(
        [how](const Arguments& in) { return hinge_embedding_loss(in.a, in.b, 0.7, how); });
    table["multilabel_" + name] = result_of(
        [how](const Arguments& in) { return multilabel_soft_margin_loss(in.a, in.b, in.c, how); });
    table["poisson_" + name] = result_of([how](const Arguments& in) {
      return poisson_nll_loss(in.a, in.b, {.full = true, .reduction = how});
    });
    table["poisson_rate_" + name] = result_of([how](const Arguments& in) {
      return poisson_nll_loss(in.a, in.b, {.log_input = false, .eps = 1e-3, .reduction = how});
    });
    table["bce_probability_" + name] = result_of(
        [how](const Arguments& in) { return binary_cross_entropy(in.a, in.b, in.c, how); });
  }
  return table;
}

Operation close_with(double rtol, double atol) {
  return result_of([=](const Arguments& in) {
    return isclose(in.a, in.b, {rtol, atol, in.n[0] != 0});
  });
}
Results both(const std::pair<Tensor, Tensor>& results) { return {results.first, results.second}; }

Table counts() {
  return {
      {"cummax", [](const Arguments& in) { return both(cummax(in.a, in.dim(0))); }},
      {"cummin", [](const Arguments& in) { return both(cummin(in.a, in.dim(0))); }},
      {"logcumsumexp",
       result_of([](const Arguments& in) { return logcumsumexp(in.a, in.dim(0)); })},
      {"nansum", result_of([](const Arguments& in) { return nansum(in.a, dims_of(in)); })},
      {"nanmean", result_of([](const Arguments& in) { return nanmean(in.a, dims_of(in), true); })},
      {"nansum_all", result_of([](const Arguments& in) { return nansum(in.a); })},
      {"nanmean_all", result_of([](const Arguments& in) { return nanmean(in.a); })},
      {"count_nonzero",
       result_of([](const Arguments& in) { return count_nonzero(in.a, dims_of(in)); })},
      {"var_mean", [](const Arguments& in) { return both(var_mean(in.a, dims_of(in), 0)); }},
      {"std_mean", [](const Arguments& in) { return both(std_mean(in.a, dims_of(in), 1, true)); }},
      {"bincount", result_of([](const Arguments& in) { return bincount(in.a, in.b, in.n[0]); })},
      {"histc", result_of([](const Arguments& in) {
         return histc(in.a, in.n[0], double(in.n[1]), double(in.n[2]));
       })},
      {"searchsorted",
       result_of([](const Arguments& in) { return searchsorted(in.a, in.b, in.n[0] != 0); })},
      {"bucketize",
       result_of([](const Arguments& in) { return bucketize(in.a, in.b, in.n[0] != 0); })},
      {"isclose", close_with(1e-5, 1e-8)},
      {"isclose_wide", close_with(0.01, 2.5)},
      {"isclose_exact", close_with(0, 0)},
  };
}

PoolOptions pool_of(const Arguments& in) {
  return {.kernel = in.n[0],
          .stride = Pair(in.n[1]),
          .padding = in.n[2],
          .count_include_pad = in.n[3] != 0,
          .ceil_mode = true};
}
Operation resized(Interpolation mode, bool corners) {
  return result_of([=](const Arguments& in) {
    return interpolate(in.a, {.size = Pair(in.n[0]), .mode = mode, .align_corners = corners});
  });
}

Table images() {
  return {
      {"conv2d_same", result_of([](const Arguments& in) {
         return conv2d(in.a, in.b, in.c, {.padding = "same", .dilation = in.n[0], .groups = 2});
       })},
      {"conv1d_same", result_of([](const Arguments& in) {
         return conv1d(in.a, in.b, in.c, {.padding = "same", .dilation = in.n[0]});
       })},
      {"conv2d_valid", result_of([](const Arguments& in) {
         return conv2d(in.a, in.b, {}, {.stride = 2, .padding = "valid"});
       })},
      {"conv1d", result_of([](const Arguments& in) { return conv1d(in.a, in.b, in.c); })},
      {"conv_transpose2d",
       result_of([](const Arguments& in) { return conv_transpose2d(in.a, in.b, in.c); })},
      {"conv_transpose1d", result_of([](const Arguments& in) {
         return conv_transpose1d(
             in.a, in.b, in.c,
             {.stride = 2, .padding = 1, .output_padding = 1, .dilation = 2, .groups = 2});
       })},
      {"avg_ceil", result_of([](const Arguments& in) { return avg_pool2d(in.a, pool_of(in)); })},
      {"avg_pool1d", result_of([](const Arguments& in) { return avg_pool1d(in.a, pool_of(in)); })},
      {"max_pool1d", result_of([](const Arguments& in) { return max_pool1d(in.a, pool_of(in)); })},
      {"max_pool2d",
       result_of([](const Arguments& in) { return max_pool2d(in.a, {.kernel = 2}); })},
      {"avg_pool2d",
       result_of([](const Arguments& in) { return avg_pool2d(in.a, {.kernel = 2}); })},
      {"adaptive_avg", result_of([](const Arguments& in) {
         return adaptive_avg_pool2d(in.a, {2, 3});
       })},
      {"adaptive_max", result_of([](const Arguments& in) {
         return adaptive_max_pool2d(in.a, {in.n[0], in.n[1]});
       })},
      {"interpolate_nearest", resized(Interpolation::nearest, false)},
      {"interpolate_linear", resized(Interpolation::bilinear, false)},
      {"interpolate_corners", resized(Interpolation::bilinear, true)},
      {"interpolate_factor", result_of([](const Arguments& in) {
         return interpolate(in.a, {.scale_factor = 1.7, .mode = Interpolation::bilinear});
       })},
      {"pixel_shuffle", result_of([](const Arguments& in) { return pixel_shuffle(in.a, 2); })},
      {"instance_norm",
       [](const Arguments& in) {
         const Tensor mean = in.b.clone(), variance = in.c.clone();
         return Results{instance_norm(in.a, {}, {}, mean, variance, {.momentum = 0.2}), mean,
                        variance};
       }},
      {"instance_norm_eval", result_of([](const Arguments& in) {
         return instance_norm(in.a, {}, {}, in.b, in.c, {.use_input_stats = false});
       })},
  };
}

Table movements() {
  return {
      {"scatter",
       result_of([](const Arguments& in) { return scatter(in.a, in.dim(0), in.b, in.c); })},
      {"scatter_value",
       result_of([](const Arguments& in) { return scatter(in.a, in.dim(0), in.b, 1); })},
      {"index_add",
       result_of([](const Arguments& in) { return index_add(in.a, in.dim(0), in.b, in.c, 2); })},
      {"take_along",
       result_of([](const Arguments& in) { return take_along_dim(in.a, in.b, in.dim(0)); })},
      {"take", result_of([](const Arguments& in) { return take_along_dim(in.a, in.b); })},
      {"nonzero", result_of([](const Arguments& in) { return nonzero(in.a); })},
      {"masked_select", result_of([](const Arguments& in) { return masked_select(in.a, in.b); })},
      {"unique",
       [](const Arguments& in) {
         const Unique different = unique(in.a);
         return Results{different.values, different.inverse, different.counts};
       }},
      {"tile", result_of([](const Arguments& in) { return tile(in.a, dims_of(in)); })},
      {"roll_flat", result_of([](const Arguments& in) { return roll(in.a, {in.n[0]}); })},
      {"roll", result_of([](const Arguments& in) {
         return roll(in.a, {in.n[0], 1}, {0, -1});
       })},
      {"diagonal", result_of([](const Arguments& in) {
         return diagonal(in.a, in.n[0], in.dim(1), in.dim(2));
       })},
      {"outer", result_of([](const Arguments& in) { return outer(in.a, in.b); })},
      {"squeeze", result_of([](const Arguments& in) { return squeeze(in.a); })},
      {"meshgrid_ij",
       [](const Arguments& in) {
         return meshgrid({in.a, in.b, in.c});
       }},
      {"meshgrid_xy",
       [](const Arguments& in) {
         return meshgrid({in.a, in.b, in.c}, "xy");
       }},
      {"linspace", result_of([](const Arguments& in) { return linspace(-1, 2.5, in.n[0]); })},
      {"eye", result_of([](const Arguments& in) { return eye(in.n[0], in.n[1]); })},
  };
}

Results of_letters(const std::string& equation, const Arguments& in) {
  std::vector<Tensor> operands;
  for (const Tensor* x : {&in.a, &in.b, &in.c})
    if (x->defined()) operands.push_back(*x);
  return {einsum(equation, operands)};
}

}  // namespace

TEST_CASE("pytorch: arguments, and operations that consist of others") {
  Table table = numbers();
  for (Table& more :
       std::array{reductions(), losses(), composed_losses(), counts(), images(), movements()})
    table.merge(more);
  const auto cases = load_cases("arguments");
  CHECK(cases.size() > 500);
  std::set<std::string> unused;
  for (const auto& [name, operation] : table) unused.insert(name);
  for (const std::string_view backend : {"reference", "cpu"}) {
    const CpuBackendScope scope(backend);
    for (const auto& [name, tensors] : cases) {
      CAPTURE(backend);
      CAPTURE(name);
      const std::string op = name.substr(0, name.rfind('/'));
      unused.erase(op);
      if (op.starts_with("einsum_")) {
        check_case(tensors, [&](const Arguments& in) { return of_letters(op.substr(7), in); });
        continue;
      }
      REQUIRE_MESSAGE(table.contains(op), "there is no operation ", op);
      // Gradients that are exponentials of differences of larger numbers, up to 1e3.
      const bool exponential = op.starts_with("ctc") || op == "logcumsumexp";
      check_case(tensors, table.at(op), exponential ? 256 : 4);
    }
  }
  CHECK(unused.empty());
}

}  // namespace halftone::test::arguments_test
