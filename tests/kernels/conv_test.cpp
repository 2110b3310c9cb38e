// Convolutions and their gradients: strides, padding, dilation, and groups of one channel, of few
// channels, and of enough channels for tiles.
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include <halftone/autograd/ops.h>
#include <halftone/backends/image_axis.h>

#include "against_reference.h"

namespace halftone::test {
namespace {

struct ConvCase {
  int64_t images, in, out, height, width, kh, kw;
  ConvGeometry geometry{};
  std::array<int64_t, 2> last{};  // columns and rows after the last window, which it does not read
};

Tensor images(const Shape& s, DType dtype) {
  return randn({s[0], s[2], s[3], s[1]}, dtype).view_as(s, channels_last_strides(s), 0);
}

void check_conv(const ConvCase& c, DType dtype, DType weight_gradient) {
  const ConvGeometry& g = c.geometry;
  INFO(c.images, " images, ", c.in, " -> ", c.out, " channels, groups ", g.groups, ", kernel ",
       c.kh, " x ", c.kw, ", stride ", g.stride[0], ", ", dtype);
  const auto size = [&](int64_t in, int64_t kernel, std::size_t d) {
    return (in - c.last[d] + 2 * g.padding[d] - g.dilation[d] * (kernel - 1) - 1) / g.stride[d] + 1;
  };
  const Shape pixels{c.images, c.out, size(c.height, c.kh, 0), size(c.width, c.kw, 1)};
  const Tensor x = images({c.images, c.in, c.height, c.width}, dtype), dy = images(pixels, dtype),
               w = randn({c.out, c.in / g.groups, c.kh, c.kw}, dtype), bias = randn({c.out}, dtype);
  for (const Tensor& weight : sizes<Tensor>({w}, {views::channels_last(w)})) {
    for (const Tensor& some : {Tensor{}, bias})
      check_against_reference({x, weight, some}, {empty_like(dy)}, 64,
                              [&](Backend& backend, const Tensors& in, Tensors& out) {
                                backend.conv(in[0], in[1], in[2], g, out[0]);
                              });
    check_against_reference({dy, weight}, {empty_like(x)}, 64,
                            [&](Backend& backend, const Tensors& in, Tensors& out) {
                              backend.conv_backward_data(in[0], in[1], g, out[0]);
                            });
  }
  // cuDNN rounds the f32 gradients of short weights to their dtype.
  const double rounding = emulation::uses_cudnn() && size_of(weight_gradient) > size_of(dtype)
                              ? epsilon(dtype) / epsilon(weight_gradient)
                              : 0;
  check_against_reference({x, dy}, {empty(w.shape(), weight_gradient), empty({c.out}, dtype)},
                          256 + rounding, [&](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.conv_backward_weights(in[0], in[1], g, out[0], out[1]);
                          });
}

TEST_CASE("kernels: convolutions in tiles") {
  for (const DType dtype : floating_dtypes)
    for (const ConvCase& c :
         {ConvCase{1, 1, 1, 3, 3, 1, 1},
          {2, 3, 66, 7, 5, 3, 3, {.padding = {1, 1}}},
          {2, 17, 5, 8, 9, 3, 2, {.stride = {2, 3}, .padding = {1, 0}, .dilation = {1, 2}}},
          {0, 3, 4, 5, 5, 2, 2},
          {3, 34, 32, 5, 4, 2, 3, {.padding = {0, 2}, .groups = 2}},
          {1, 4, 6, 6, 6, 5, 5, {.stride = {4, 1}, .padding = {4, 4}}}})
      check_conv(c, dtype, dtype);
}

TEST_CASE("kernels: convolutions of narrow groups") {
  for (const DType dtype : floating_dtypes)
    for (const ConvCase& c :
         {ConvCase{2, 37, 37, 6, 5, 3, 3, {.padding = {1, 1}, .groups = 37}},
          {1, 4, 12, 7, 7, 3, 1, {.stride = {2, 2}, .padding = {1, 0}, .groups = 4}},
          {2, 12, 4, 5, 6, 2, 2, {.dilation = {2, 1}, .groups = 2}}})
      check_conv(c, dtype, statistics(dtype));
}

TEST_CASE("kernels: convolutions of many pixels split their sums, or use large tiles") {
  for (const DType dtype : {f32, f16, bf16}) {
    check_conv({1, 34, 150, 4, 4, 3, 3, {.padding = {1, 1}}}, dtype, dtype);
    check_conv({3, 5, 6, 20, 19, 3, 3, {.padding = {1, 1}}}, dtype, f32);
    check_conv({2, 4, 4, 30, 41, 3, 3, {.padding = {1, 1}, .groups = 4}}, dtype, f32);
    // whole tiles
    check_conv({3, 66, 130, 11, 12, 2, 1, {.padding = {1, 0}}}, dtype, dtype);
  }
}

/// Returns a geometry with an output, or nothing. Every second image is that of a transposed
/// convolution with output padding.
std::optional<ConvCase> drawn(std::mt19937& random) {
  const auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
  const bool transposed = below(2) == 0;
  const int64_t images = 1 + below(2), groups = std::array{1, 1, 1, 2, 3}[std::size_t(below(5))];
  ConvCase c{images, groups * (1 + below(9)), groups * (1 + below(17)), 0, 0, 0, 0};
  c.geometry.groups = groups;
  if (below(6) == 0) c.geometry.groups = c.in = c.out = 1 + below(8);  // depthwise
  for (const std::size_t d : {0u, 1u}) {
    ConvGeometry& g = c.geometry;
    int64_t& image = d == 0 ? c.height : c.width;
    int64_t& kernel = d == 0 ? c.kh : c.kw;
    image = 1 + below(12), kernel = 1 + below(4);
    g.stride[d] = 1 + below(3), g.padding[d] = below(4), g.dilation[d] = 1 + below(3);
    if (transposed) c.last[d] = below(std::max(g.stride[d], g.dilation[d]));
    const int64_t span = g.dilation[d] * (kernel - 1) + 1;
    const int64_t size = transposed
                             ? (image - 1) * g.stride[d] - 2 * g.padding[d] + span + c.last[d]
                             : image + 2 * g.padding[d] - span + 1;
    if (size < 1) return std::nullopt;
    if (transposed) image = size;
  }
  return c;
}

TEST_CASE("kernels: convolutions of random geometries, also those that libraries decline") {
  std::mt19937 random(7);
  int compared = 0, beyond_stride = 0;
  const int wanted = with_gpu() ? 24 : 240;
  while (compared < wanted) {
    const std::optional<ConvCase> c = drawn(random);
    if (!c) continue;
    const DType dtype = floating_dtypes[compared++ % 4];
    check_conv(*c, dtype, dtype);
    for (const std::size_t d : {0u, 1u}) beyond_stride += c->last[d] >= c->geometry.stride[d];
  }
  CHECK(beyond_stride * 24 > wanted);  // oneDNN calls such geometries invalid
}

}  // namespace
}  // namespace halftone::test

// Pooling and interpolation of images whose channels fill packs or do not, with windows that
// overlap, touch or are apart; and the closed form of the outputs that read an input.

namespace halftone::test {
namespace {

const PoolGeometry geometries[] = {PoolGeometry{}, PoolGeometry{{3, 3}, {2, 2}, {1, 1}, true},
                                   PoolGeometry{{3, 2}, {2, 3}, {1, 0}, false},
                                   PoolGeometry{{2, 2}, {3, 3}, {0, 0}, true},
                                   PoolGeometry{{5, 4}, {1, 1}, {2, 2}, false}};

Shape pooled(const Shape& in, const PoolGeometry& g) {
  Shape y = in;
  for (const std::size_t d : {0u, 1u})
    y[2 + int(d)] = (in[2 + int(d)] + 2 * g.padding[d] - g.kernel[d]) / g.stride[d] + 1;
  return y;
}

void check_max_pool(const Tensor& x, const PoolGeometry& g, DType places) {
  const Shape shape = pooled(x.shape(), g);
  INFO(described(x), ", kernel ", g.kernel[0], ", stride ", g.stride[0]);
  Tensor y = images(shape, x.dtype());
  Tensor argmax = empty({numel_of(shape)}, places).view_as(shape, channels_last_strides(shape), 0);
  check_against_reference({x}, {y, argmax}, 0,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.max_pool(in[0], g, out[0], out[1]);
                          });
  const CpuBackendScope reference("reference");
  backend_for(x).max_pool(x, g, y, argmax);
  check_against_reference({images(shape, x.dtype()), argmax}, {empty_like(x)}, 32,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.max_pool_backward(in[0], in[1], g, out[0]);
                          });
}

/// Few different values, so that windows have equal maxima; both zeros among them. Every third of
/// them becomes `special`, if it is not 0.
Tensor with_ties(const Shape& s, DType dtype, double special) {
  Tensor x = randint(-8, 8, {s[0], s[2], s[3], s[1]}).to(f32);
  for (int64_t i = 0; i < x.numel(); ++i) {
    float& value = x.data<float>()[i];
    value = value == 0 && i % 2 ? -0.0f : value / 4;
    if (special != 0 && i % 3 == 1) value = float(special);
  }
  return x.to(dtype).view_as(s, channels_last_strides(s), 0);
}

TEST_CASE("kernels: max pooling and its gradient") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : floating_dtypes)
    for (const int64_t channels : sizes<int64_t>({1, 8, 37}, {3, 16, 32, 64, 130}))
      for (const PoolGeometry& g : geometries) {
        for (const DType places : {u8, i32})
          check_max_pool(images({2, channels, 9, 8}, dtype), g, places);
        for (const double special : sizes<double>({0}, {std::nan(""), -infinity}))
          check_max_pool(with_ties({2, channels, 9, 8}, dtype, special), g, u8);
      }
  Tensor x = images({1, 4, 5, 5}, f32);
  for (int64_t i = 0; i < x.numel(); i += 7)
    x.data<float>()[i] =
        i % 2 ? std::numeric_limits<float>::quiet_NaN() : -std::numeric_limits<float>::infinity();
  for (const PoolGeometry& g : geometries) check_max_pool(x, g, u8);
}

TEST_CASE("kernels: average pooling, sliding and adaptive, and their gradients") {
  for (const DType dtype : floating_dtypes)
    for (const int64_t channels : sizes<int64_t>({1, 8, 37}, {3, 16, 32, 64, 130})) {
      const Tensor x = images({2, channels, 9, 8}, dtype);
      INFO(described(x));
      for (const PoolGeometry& g : geometries) {
        const Tensor y = images(pooled(x.shape(), g), dtype);
        check_against_reference({x}, {empty_like(y)}, 16,
                                [&](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.avg_pool(in[0], g, out[0]);
                                });
        check_against_reference({y}, {empty_like(x)}, 16,
                                [&](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.avg_pool_backward(in[0], g, out[0]);
                                });
      }
      for (const int64_t out_size : {1, 3, 7, 20}) {
        const Tensor y = images({2, channels, out_size, 5}, dtype);
        check_against_reference({x}, {empty_like(y)}, 16,
                                [&](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.adaptive_avg_pool(in[0], out[0]);
                                });
        check_against_reference({y}, {empty_like(x)}, 16,
                                [&](Backend& backend, const Tensors& in, Tensors& out) {
                                  backend.adaptive_avg_pool_backward(in[0], out[0]);
                                });
      }
    }
}

void check_interpolate(const Shape& from, int64_t height, int64_t width, DType dtype, DType result,
                       Interpolation mode, bool align_corners) {
  const Tensor x = images(from, dtype), y = images({from[0], from[1], height, width}, result);
  const InterpolationGeometry g{
      mode, align_corners, {double(from[2]) / double(height), double(from[3]) / double(width)}};
  INFO(described(x), " to ", described(y), ", mode ", int(mode), ", aligned ", align_corners);
  check_against_reference({x}, {empty_like(y)}, 16,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.interpolate(in[0], g, out[0]);
                          });
  check_against_reference({y}, {empty_like(x)}, 64,
                          [&](Backend& backend, const Tensors& in, Tensors& out) {
                            backend.interpolate_backward(in[0], g, out[0]);
                          });
}

TEST_CASE("kernels: interpolation and its gradient") {
  for (const DType dtype : floating_dtypes)
    for (const int64_t channels : {1, 4, 37})
      for (const bool aligned : {false, true}) {
        check_interpolate({2, channels, 5, 7}, 11, 3, dtype, dtype, Interpolation::bilinear,
                          aligned);
        check_interpolate({1, channels, 1, 6}, 1, 13, dtype, f32, Interpolation::bilinear, aligned);
        check_interpolate({2, channels, 5, 7}, 13, 2, dtype, dtype, Interpolation::nearest, false);
        check_interpolate({1, channels, 3, 2}, 2, 5, f32, dtype, Interpolation::bilinear, aligned);
      }
}

TEST_CASE(
    "the closed form of the outputs that read an input gives those whose windows contain it") {
  const auto check = [](const auto& windows) {
    for (int64_t i = 0; i < windows.in; ++i) {
      const Range readers = windows.readers(i);
      for (int64_t o = 0; o < windows.out; ++o) {
        const Range window = windows.window(o);
        CHECK((i >= window.begin && i < window.end) == (o >= readers.begin && o < readers.end));
      }
    }
  };
  for (const int64_t in : {1, 2, 7, 12}) {
    for (int64_t out = 1; out < 16; ++out) check(AdaptiveWindows{in, out});
    for (const PoolGeometry& g : geometries)
      if (in + 2 * g.padding[0] >= g.kernel[0])
        check(SlidingWindows(in, (in + 2 * g.padding[0] - g.kernel[0]) / g.stride[0] + 1, g, 0));
  }
}

}  // namespace
}  // namespace halftone::test
