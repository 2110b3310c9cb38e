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

int64_t one_of(Random& random, std::initializer_list<int64_t> values) {
  return values.begin()[from_to(random, 0, int64_t(values.size()) - 1)];
}

/// Small integers, exact in every dtype.
Tensor integers(Random& random, const Shape& shape, DType dtype) {
  std::vector<double> values(std::size_t(numel_of(shape)));
  for (double& value : values) value = double(from_to(random, -3, 3));
  return from_vector(values, shape, dtype);
}
/// Returns a view of new memory full of NaN, which is also in the holes of the view and around it.
Tensor among_nan(Random& random, const Shape& shape, const Strides& strides, DType dtype) {
  constexpr int64_t around = 70;  // more than a tile or a vector
  const int64_t first = around + from_to(random, 0, 15);
  int64_t last = first;
  for (int d = 0; d < shape.rank(); ++d) last += (shape[d] - 1) * strides[d];
  const Tensor room = full({last + 1 + around}, std::numeric_limits<double>::quiet_NaN(), dtype);
  return room.view_as(shape, strides, first);
}
/// Returns small integers there.
Tensor integers_among_nan(Random& random, const Shape& shape, const Strides& strides, DType dtype) {
  const Tensor x = integers(random, shape, dtype);
  Tensor y = among_nan(random, shape, strides, dtype);
  backend_for(x).copy(x, y);
  return y;
}

Strides channels_last(const Shape& shape) {
  const int64_t c = shape[1], h = shape[2], w = shape[3];
  return {c * h * w, 1, w * c, c};
}

/// Returns whether a result wrote elements of its memory that are not its own.
bool wrote_elsewhere(const Tensor& result) {
  const int64_t all = result.storage()->bytes() / size_of(result.dtype());
  const std::vector<double> memory = result.view_as({all}, {1}, 0).to_vector<double>();
  return std::count_if(memory.begin(), memory.end(), [](double v) { return !std::isnan(v); }) !=
         result.numel();
}

std::string first_difference(const Tensor& got, const Tensor& wanted) {
  const std::vector<double> a = got.to_vector<double>(), b = wanted.to_vector<double>();
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    std::ostringstream text;
    text << "element " << i << " of " << a.size() << " is " << a[i] << ", not " << b[i];
    return text.str();
  }
  return wrote_elsewhere(got) ? "it wrote elsewhere" : "";
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
    const int64_t widest = one_of(random, {2, 20, 20, 70});
    c.g.groups = depthwise                    ? from_to(random, 1, 40)
                 : from_to(random, 0, 4) == 0 ? from_to(random, 2, 3)
                                              : 1;
    const int64_t in = depthwise ? 1 : from_to(random, 1, widest),
                  out = depthwise ? 1 : from_to(random, 1, widest);
    const int64_t n = from_to(random, 1, 3);
    std::array<int64_t, 2> image{}, kernel{1, 1}, size{};
    bool possible = true;
    for (std::size_t d : {0u, 1u}) {
      image[d] = from_to(random, 1, one_of(random, {5, 24, 24, 24, 70}));
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
  const Strides w_strides = c.w_channels_last ? channels_last(c.w) : contiguous_strides(c.w);
  const Tensor x = integers_among_nan(random, c.x, channels_last(c.x), dtype),
               w = integers_among_nan(random, c.w, w_strides, dtype),
               y = integers_among_nan(random, c.y, channels_last(c.y), dtype),
               bias = c.bias ? integers_among_nan(random, {c.w[0]}, {1}, dtype) : Tensor();
  Comparison result;
  Tensor got;
  if (primitive == Primitive::conv) {
    got = among_nan(random, c.y, channels_last(c.y), dtype);
    result.served = onednn::conv(x, w, bias, c.g, got);
  } else if (primitive == Primitive::conv_backward_data) {
    got = among_nan(random, c.x, channels_last(c.x), dtype);
    result.served = onednn::conv_backward_data(y, w, c.g, got);
  } else {
    // Gradients of weights have PyTorch's order. Under autocast those of bf16 weights are f32.
    const DType of_weights = from_to(random, 0, 1) == 0 ? f32 : dtype;
    got = among_nan(random, c.w, contiguous_strides(c.w), of_weights);
    result.served = onednn::conv_backward_weights(x, y, c.g, got);
  }
  if (!result.served) return result;
  const CpuBackendScope scope("reference");
  Backend& reference = backend_for(x);
  Tensor wanted = zeros_like(got), no_bias;
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

/// A matrix or several, each row-major or column-major, with holes. A dimension of one element has
/// any stride.
Tensor matrix(Random& random, const Shape& shape, DType dtype) {
  const int r = shape.rank();
  const auto gap = [&] { return from_to(random, 0, 1) == 0 ? 0 : from_to(random, 1, 9); };
  const int inner = r - 1 - int(from_to(random, 0, 1)), outer = 2 * r - 3 - inner;
  Strides strides = contiguous_strides(shape);
  strides[inner] = shape[inner] == 1 ? 1 + gap() : 1;
  strides[outer] = shape[inner] * strides[inner] + gap();
  if (r == 3) strides[0] = shape[outer] * strides[outer] + gap();
  return integers_among_nan(random, shape, strides, dtype);
}

Comparison compare_matmul(DType dtype, Random& random) {
  const int64_t batch = from_to(random, 0, 1) == 0 ? 0 : from_to(random, 1, 6);
  const auto size = [&] { return from_to(random, 1, one_of(random, {4, 40, 40, 140})); };
  const int64_t m = size(), n = size(), k = size();
  const Shape a_shape = batch ? Shape{batch, m, k} : Shape{m, k},
              b_shape = batch ? Shape{batch, k, n} : Shape{k, n},
              c_shape = batch ? Shape{batch, m, n} : Shape{m, n};
  const DType of_result = from_to(random, 0, 1) == 0 ? f32 : dtype;
  const Tensor a = matrix(random, a_shape, dtype), b = matrix(random, b_shape, dtype);
  const Tensor bias =
      from_to(random, 0, 1) == 0 ? integers_among_nan(random, {n}, {1}, dtype) : Tensor();
  Tensor got = among_nan(random, c_shape, contiguous_strides(c_shape), of_result),
         wanted = zeros(c_shape, of_result);
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
