// Compares the primitives of oneDNN with the reference on a fixed part of the random geometries of
// onednn_fuzz.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "onednn_geometries.h"

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>

namespace halftone::test::onednn_test {
namespace {

TEST_CASE("oneDNN's primitives equal the reference on random geometries") {
  for (const DType dtype : {f32, bf16})
    for (std::size_t p = 0; p < primitive_names().size(); ++p) {
      CAPTURE(std::string(primitive_names()[p]));
      CAPTURE(std::string(name(dtype)));
      std::mt19937 random(5);
      for (int i = 0; i < 300; ++i)
        CHECK(compare_onednn(Primitive(p), dtype, random).difference == "");
    }
}

TEST_CASE("1 x 1 convolutions in bf16 with an odd number of output channels have a right dx") {
  // oneDNN 2.6 multiplies dy of the last channel by dy for some numbers of pixels.
  for (const auto& [height, width] : {std::pair{5, 6}, {30, 1}, {59, 1}, {60, 1}, {9, 10}})
    for (const int64_t out : {1, 3, 5}) {
      CAPTURE(height * width);
      CAPTURE(out);
      const Tensor w = cast(randint(-3, 4, {out, 2, 1, 1}), bf16);
      const Tensor dy = cast(randint(-7, 8, {1, out, height, width}), bf16);
      const auto gradient = [&] {
        Tensor x = zeros({1, 2, height, width}, bf16).set_requires_grad();
        conv2d(x, w).backward(dy);
        return x.grad().to_vector<double>();
      };
      const std::vector<double> fast = gradient();
      const CpuBackendScope scope("reference");
      CHECK(fast == gradient());
      // The forward pass of a transposed convolution is the same computation.
      const auto transposed = [&] { return conv_transpose2d(dy, w).to_vector<double>(); };
      const std::vector<double> plain = transposed();
      const CpuBackendScope again("cpu");
      CHECK(transposed() == plain);
    }
}

TEST_CASE("convolutions of one channel whose result is one pixel wide are right") {
  // oneDNN 3.7 computes other numbers if windows step sideways.
  for (const DType dtype : {f32, bf16})
    for (const int64_t groups : {1, 3})
      for (const int64_t stride : {2, 3, 4}) {
        CAPTURE(std::string(name(dtype)));
        CAPTURE(groups);
        CAPTURE(stride);
        const Tensor x = cast(randint(-3, 4, {2, groups, 7, 5}), dtype);
        const Tensor w = cast(randint(-3, 4, {6 * groups, 1, 2, 4}), dtype);
        const auto y = [&] {
          return conv2d(x, w, {}, {.stride = {1, stride}, .groups = groups}).to_vector<double>();
        };
        const std::vector<double> fast = y();
        const CpuBackendScope scope("reference");
        CHECK(fast == y());
      }
}

TEST_CASE("convolutions inside a parallel region of the caller equal those outside of it") {
  const Tensor x = cast(randn({2, 20, 12, 12}), bf16), w = cast(randn({24, 20, 3, 3}), bf16);
  const auto results = [&] {
    Tensor image = x.detach().clone().set_requires_grad(),
           weight = w.detach().clone().set_requires_grad();
    Tensor y = conv2d(image, weight, {}, {.padding = 1});
    sum(y * y).backward();
    const Tensor product = matmul(reshape(y.detach(), {48, 144}), reshape(x, {144, 40}));
    return std::array{y.to_vector<double>(), image.grad().to_vector<double>(),
                      weight.grad().to_vector<double>(), product.to_vector<double>()};
  };
  const auto outside = results();
  // Teams of other sizes add in another order, so results differ by a rounding.
  const auto close = [&](const auto& inside) {
    for (std::size_t k = 0; k < outside.size(); ++k) {
      double largest = 0;
      for (const double v : outside[k]) largest = std::max(largest, std::abs(v));
      for (std::size_t i = 0; i < outside[k].size(); ++i)
        if (!(std::abs(inside[k][i] - outside[k][i]) <= epsilon(bf16) * largest)) return false;
    }
    return true;
  };
  std::array<bool, 3> equal{};
#pragma omp parallel for num_threads(3) schedule(static)
  for (std::size_t i = 0; i < equal.size(); ++i) equal[i] = close(results());
  CHECK(equal == std::array{true, true, true});
}

}  // namespace
}  // namespace halftone::test::onednn_test
