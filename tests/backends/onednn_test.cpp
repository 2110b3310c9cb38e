// oneDNN takes the convolutions of the usual networks, and never with its scalar implementation:
// with oneDNN 2.6 that is hundreds of times slower.
#include <doctest/doctest.h>

#include <halftone/backends/cpu/isa.h>
#include <halftone/backends/cpu/onednn/onednn.h>
#include <halftone/core/factory.h>

namespace halftone::test::onednn_test {
namespace {

bool present() { return onednn::description().starts_with("oneDNN"); }
/// oneDNN is capped like our own kernels (ONEDNN_MAX_CPU_ISA, HALFTONE_MAX_ISA), so they tell.
bool bf16_is_native() { return std::string_view(simd_kernels().name) == "avx512_bf16"; }

struct Layer {
  const char* name;
  Shape x, w;
  ConvGeometry geometry{};
};
/// LeNet's, ResNet-18's on small images, a depthwise block's.
const std::vector<Layer>& layers() {
  static const std::vector<Layer> all{
      {"lenet 1", {4, 1, 28, 28}, {6, 1, 5, 5}, {.padding = {2, 2}}},
      {"lenet 2", {4, 6, 14, 14}, {16, 6, 5, 5}},
      {"stem", {2, 3, 32, 32}, {64, 3, 3, 3}, {.padding = {1, 1}}},
      {"stem, large", {1, 3, 64, 64}, {64, 3, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}},
      {"block", {2, 64, 16, 16}, {64, 64, 3, 3}, {.padding = {1, 1}}},
      {"down", {2, 64, 16, 16}, {128, 64, 3, 3}, {.stride = {2, 2}, .padding = {1, 1}}},
      {"shortcut", {2, 64, 16, 16}, {128, 64, 1, 1}, {.stride = {2, 2}}},
      {"depthwise", {2, 32, 14, 14}, {32, 1, 3, 3}, {.padding = {1, 1}, .groups = 32}},
      {"pointwise", {2, 32, 14, 14}, {64, 32, 1, 1}}};
  return all;
}

struct Tensors {
  Tensor x, w, bias, y, dx, dw, dbias;
  Tensors(const Layer& layer, DType dtype) {
    const ConvGeometry& g = layer.geometry;
    Shape shape{layer.x[0], layer.w[0], 0, 0};
    for (int i : {0, 1}) {
      const auto d = std::size_t(i);
      shape[2 + i] =
          (layer.x[2 + i] + 2 * g.padding[d] - g.dilation[d] * (layer.w[2 + i] - 1) - 1) /
              g.stride[d] +
          1;
    }
    const auto image = [&](const Shape& s) {
      Tensor t = empty_channels_last(s, dtype, {});
      backend_for(t).fill(1, t);
      return t;
    };
    x = image(layer.x), dx = image(layer.x), y = image(shape);
    w = ones(layer.w, dtype), dw = ones(layer.w, dtype);
    bias = zeros({layer.w[0]}, dtype), dbias = zeros({layer.w[0]}, dtype);
  }
};

/// The three convolutions of a training step; says whether each was taken.
std::array<bool, 3> direct(const Layer& layer, DType dtype) {
  Tensors t(layer, dtype);
  std::array<bool, 3> taken{};
  const auto checked = [&](bool took) {
    if (took) {
      const std::string used = onednn::last_implementation();
      CHECK(used != "");
      CHECK_MESSAGE(used.find("ref") == std::string::npos, used);
    }
    return took;
  };
  taken[0] = checked(onednn::conv(t.x, t.w, t.bias, layer.geometry, t.y));
  taken[1] = checked(onednn::conv_backward_data(t.y, t.w, layer.geometry, t.dx));
  taken[2] = checked(onednn::conv_backward_weights(t.x, t.y, layer.geometry, t.dw));
  return taken;
}

TEST_CASE(
    "f32 convolutions of the usual networks run on oneDNN's fast code, forward and backward") {
  if (!present()) return;
  for (const Layer& layer : layers()) {
    INFO(std::string(layer.name));
    CHECK(direct(layer, f32) == std::array{true, true, true});
  }
}

TEST_CASE("bf16 convolutions do where the CPU has AVX-512, and are never scalar") {
  if (!present()) return;
  for (const Layer& layer : layers()) {
    INFO(std::string(layer.name));
    const std::array<bool, 3> taken = direct(layer, bf16);
    if (bf16_is_native()) CHECK(taken == std::array{true, true, true});
  }
}

TEST_CASE(
    "f16 goes through f32: oneDNN itself is not asked, the backend still uses its fast code") {
  if (!present()) return;
  const CpuBackendScope scope("cpu");
  for (const Layer& layer : layers()) {
    INFO(std::string(layer.name));
    CHECK(direct(layer, f16) == std::array{false, false, false});
    Tensors t(layer, f16);
    Backend& backend = backend_for(t.x);
    backend.conv(t.x, t.w, t.bias, layer.geometry, t.y);
    CHECK(onednn::last_implementation().find("ref") == std::string::npos);
    // All ones: the middle of the image sees the whole kernel.
    const double middle = t.y.at({0, 0, t.y.size(2) / 2, t.y.size(3) / 2});
    CHECK(middle == double(layer.w[1] * layer.w[2] * layer.w[3]));
    backend.conv_backward_data(t.y, t.w, layer.geometry, t.dx);
    CHECK(onednn::last_implementation().find("ref") == std::string::npos);
    backend.conv_backward_weights(t.x, t.y, layer.geometry, t.dw, t.dbias);
    CHECK(onednn::last_implementation().find("ref") == std::string::npos);
  }
}

TEST_CASE("what oneDNN does not serve it refuses, and the backend goes another way") {
  const Layer layer{"f64", {1, 2, 5, 5}, {3, 2, 3, 3}};
  CHECK(direct(layer, f64) == std::array{false, false, false});
  CHECK_FALSE(onednn::description().empty());
}

}  // namespace

}  // namespace halftone::test::onednn_test
