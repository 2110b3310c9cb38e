// Convolutions, pools and normalizations against PyTorch: tests/fixtures/pytorch/layer_fixtures.py
// has the same options.
#include <halftone/nn/norm.h>
#include <halftone/nn/state_dict.h>

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
  CHECK(cases.size() == 13);  // the others are batch norms
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
