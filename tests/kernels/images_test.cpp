// Pooling and interpolation of images whose channels fill packs or do not, with windows that
// overlap, touch or are apart; and the closed form of the outputs that read an input.
#include <cmath>
#include <limits>

#include <halftone/backends/image_axis.h>

#include "against_reference.h"

namespace halftone::test {
namespace {

Tensor images(const Shape& s, DType dtype) {
  return randn({s[0], s[2], s[3], s[1]}, dtype).view_as(s, channels_last_strides(s), 0);
}

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
