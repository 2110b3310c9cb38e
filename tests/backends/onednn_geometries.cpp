#include "onednn_geometries.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include <halftone/backends/cpu/onednn/onednn.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>

namespace halftone::test {

namespace {
using Random = std::mt19937;

int64_t from_to(Random& random, int64_t low, int64_t high) {
  return low + int64_t(random() % uint64_t(high - low + 1));
}

/// Small integers, exact in every dtype.
Tensor integers(Random& random, const Shape& shape, DType dtype) {
  std::vector<double> values(std::size_t(numel_of(shape)));
  for (double& value : values) value = double(from_to(random, -3, 3));
  return from_vector(values, shape, dtype);
}
Tensor channels_last(const Tensor& x) {
  const int64_t c = x.size(1), h = x.size(2), w = x.size(3);
  Tensor y = zeros(x.shape(), x.dtype()).view_as(x.shape(), {c * h * w, 1, w * c, c}, 0);
  backend_for(x).copy(x, y);
  return y;
}
/// A result to be written, full of NaN so that an unwritten element is found.
Tensor soiled(const Shape& shape, DType dtype, bool images) {
  const Tensor y = full(shape, std::numeric_limits<double>::quiet_NaN(), dtype);
  return images ? channels_last(y) : y;
}

std::string first_difference(const Tensor& got, const Tensor& wanted) {
  const std::vector<double> a = got.to_vector<double>(), b = wanted.to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    std::ostringstream text;
    text << "element " << i << " of " << a.size() << " is " << a[i] << ", not " << b[i];
    return text.str();
  }
  return {};
}

struct Conv {
  Shape x{}, w{}, y{};
  ConvGeometry g{};
  bool w_channels_last = false, bias = false;

  std::string text() const {
    std::ostringstream out;
    out << "x " << x << " w " << w << " y " << y << " stride " << g.stride[0] << 'x' << g.stride[1]
        << " padding " << g.padding[0] << 'x' << g.padding[1] << " dilation " << g.dilation[0]
        << 'x' << g.dilation[1] << " groups " << g.groups
        << (w_channels_last ? " w channels-last" : "") << (bias ? " bias" : "");
    return out.str();
  }
};

/// Kernels from 1 x 1 to 5 x 5, images up to 512 pixels, channels up to 70; at most a million
/// multiply-adds.
Conv drawn_conv(Random& random) {
  while (true) {
    Conv c;
    const bool point = from_to(random, 0, 2) == 0, depthwise = from_to(random, 0, 9) == 0;
    const int64_t widest = from_to(random, 0, 3) == 0 ? 70 : 20;
    c.g.groups = depthwise                    ? from_to(random, 1, 40)
                 : from_to(random, 0, 4) == 0 ? from_to(random, 2, 3)
                                              : 1;
    const int64_t in = depthwise ? 1 : from_to(random, 1, widest),
                  out = depthwise ? 1 : from_to(random, 1, widest);
    const int64_t n = from_to(random, 1, 3);
    std::array<int64_t, 2> image{}, kernel{1, 1}, size{};
    bool possible = true;
    for (std::size_t d : {0u, 1u}) {
      image[d] = from_to(random, 0, 4) == 0 ? from_to(random, 20, 70) : from_to(random, 1, 24);
      if (!point) kernel[d] = from_to(random, 1, 5);
      c.g.stride[d] = from_to(random, 0, 1) == 0 ? 1 : from_to(random, 1, 3);
      c.g.padding[d] = point ? 0 : from_to(random, 0, kernel[d] - 1);
      c.g.dilation[d] = from_to(random, 0, 3) == 0 ? from_to(random, 1, 3) : 1;
      const int64_t span = c.g.dilation[d] * (kernel[d] - 1) + 1;
      const int64_t room = image[d] + 2 * c.g.padding[d] - span;
      possible = possible && room >= 0;
      size[d] = room / c.g.stride[d] + 1;
    }
    if (!possible) continue;
    c.x = {n, c.g.groups * in, image[0], image[1]};
    c.w = {c.g.groups * out, in, kernel[0], kernel[1]};
    c.y = {n, c.g.groups * out, size[0], size[1]};
    if (numel_of(c.y) * in * kernel[0] * kernel[1] > 1'000'000) continue;
    c.w_channels_last = from_to(random, 0, 1) == 0;
    c.bias = from_to(random, 0, 1) == 0;
    return c;
  }
}

Comparison compare_conv(Primitive primitive, DType dtype, Random& random) {
  const Conv c = drawn_conv(random);
  Tensor x = channels_last(integers(random, c.x, dtype)), w = integers(random, c.w, dtype),
         y = channels_last(integers(random, c.y, dtype));
  if (c.w_channels_last) w = channels_last(w);
  const Tensor bias = c.bias ? integers(random, {c.w[0]}, dtype) : Tensor();
  Comparison result;
  Tensor got, wanted;
  if (primitive == Primitive::conv) {
    got = soiled(c.y, dtype, true), wanted = soiled(c.y, dtype, true);
    result.served = onednn::conv(x, w, bias, c.g, got);
  } else if (primitive == Primitive::conv_backward_data) {
    got = soiled(c.x, dtype, true), wanted = soiled(c.x, dtype, true);
    result.served = onednn::conv_backward_data(y, w, c.g, got);
  } else {
    // Gradients of weights have PyTorch's order. Under autocast those of bf16 weights are f32.
    const DType of_weights = from_to(random, 0, 1) == 0 ? f32 : dtype;
    got = soiled(c.w, of_weights, false), wanted = soiled(c.w, of_weights, false);
    result.served = onednn::conv_backward_weights(x, y, c.g, got);
  }
  if (!result.served) return result;
  const CpuBackendScope scope("reference");
  Backend& reference = backend_for(x);
  Tensor no_bias;
  if (primitive == Primitive::conv) reference.conv(x, w, bias, c.g, wanted);
  else if (primitive == Primitive::conv_backward_data)
    reference.conv_backward_data(y, w, c.g, wanted);
  else reference.conv_backward_weights(x, y, c.g, wanted, no_bias);
  result.difference = first_difference(got, wanted);
  if (!result.difference.empty())
    result.difference =
        c.text() + ": " + result.difference + " by " + onednn::last_implementation();
  return result;
}

/// A matrix, transposed in memory or not.
Tensor matrix(Random& random, const Shape& shape, DType dtype) {
  const int r = shape.rank();
  if (from_to(random, 0, 1) == 0) return integers(random, shape, dtype);
  Shape turned = shape;
  std::swap(turned[r - 2], turned[r - 1]);
  const Tensor x = integers(random, turned, dtype);
  Strides strides = x.strides();
  std::swap(strides[r - 2], strides[r - 1]);
  return x.view_as(shape, strides, 0);
}

Comparison compare_matmul(DType dtype, Random& random) {
  const int64_t batch = from_to(random, 0, 1) == 0 ? 0 : from_to(random, 1, 6);
  const auto size = [&] {
    return from_to(random, 0, 3) == 0 ? from_to(random, 1, 140) : from_to(random, 1, 40);
  };
  const int64_t m = size(), n = size(), k = size();
  const Shape a_shape = batch ? Shape{batch, m, k} : Shape{m, k},
              b_shape = batch ? Shape{batch, k, n} : Shape{k, n},
              c_shape = batch ? Shape{batch, m, n} : Shape{m, n};
  const DType of_result = from_to(random, 0, 1) == 0 ? f32 : dtype;
  const Tensor a = matrix(random, a_shape, dtype), b = matrix(random, b_shape, dtype);
  const Tensor bias = from_to(random, 0, 1) == 0 ? integers(random, {n}, dtype) : Tensor();
  Tensor got = soiled(c_shape, of_result, false), wanted = zeros(c_shape, of_result);
  Comparison result;
  result.served = onednn::matmul(a, b, bias, got);
  if (!result.served) return result;
  const CpuBackendScope scope("reference");
  backend_for(a).matmul(a, b, bias, wanted);
  result.difference = first_difference(got, wanted);
  if (result.difference.empty()) return result;
  std::ostringstream text;
  text << "a " << a_shape << a.strides() << " b " << b_shape << b.strides()
       << (bias.defined() ? " bias" : "") << ": " << result.difference << " by "
       << onednn::last_implementation();
  result.difference = text.str();
  return result;
}
}  // namespace

std::span<const std::string_view> primitive_names() {
  static constexpr std::array<std::string_view, 4> names{"conv", "conv_backward_data",
                                                         "conv_backward_weights", "matmul"};
  return names;
}

Comparison compare_onednn(Primitive primitive, DType dtype, std::mt19937& random) {
  return primitive == Primitive::matmul ? compare_matmul(dtype, random)
                                        : compare_conv(primitive, dtype, random);
}

}  // namespace halftone::test
