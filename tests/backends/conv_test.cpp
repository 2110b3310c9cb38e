// Convolutions that libraries computed wrongly, halftone's own kernels called directly, and
// oneDNN's primitives on random geometries. Geometries on every target:
// tests/kernels/conv_test.cpp.
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <sstream>
#include <tuple>

#include <doctest/doctest.h>

#include <halftone/backends/cpu/conv_windows.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/halftone.h>

#include "../support.h"
#include "onednn_geometries.h"
#include "support.h"

namespace halftone::test::conv_geometries_test {
namespace {

/// Leaves numbers in memory that the next operations get.
void soil_memory() {
  std::vector<Tensor> soiled;
  for (int64_t n = 16; n <= int64_t(1) << 20; n *= 2)
    for (int i = 0; i < 4; ++i) soiled.push_back(full({n}, 1e30));
}

TEST_CASE("weights of taps that touch no pixel have a gradient of 0") {
  // Images narrower than the stride: oneDNN 2.6 leaves such gradients unwritten in bf16.
  struct Narrow {
    Shape x, w;
    Pair stride, padding;
    int64_t groups = 1;
  };
  for (const DType dtype : {f32, bf16, f16})
    for (const Narrow& c : {Narrow{{1, 16, 1, 1}, {8, 16, 3, 3}, 2, 1},
                            {{2, 5, 2, 2}, {3, 5, 3, 3}, 3, 1},
                            {{1, 4, 1, 1}, {1, 4, 1, 5}, {1, 2}, {0, 4}},
                            {{3, 10, 1, 2}, {2, 5, 2, 5}, {4, 4}, {1, 3}, 2}}) {
      CAPTURE(facts(dtype).name);
      CAPTURE(c.w);
      const Conv2dOptions options{.stride = c.stride, .padding = c.padding, .groups = c.groups};
      const Tensor x = cast(ones(c.x), dtype);
      soil_memory();
      Tensor w = cast(ones(c.w), dtype).clone().set_requires_grad();
      sum(conv2d(x, w, {}, options)).backward();
      const CpuBackendScope scope("reference");
      Tensor same = w.detach().clone().set_requires_grad();
      sum(conv2d(x, same, {}, options)).backward();
      CHECK(w.grad().to_vector<double>() == same.grad().to_vector<double>());
    }
}

TEST_CASE("an output padding as large as the dilation, with stride 1") {
  for (const DType dtype : {f32, bf16, f16}) {
    const Tensor x = cast(randn({1, 2, 4, 4}), dtype), w = cast(randn({2, 3, 3, 3}), dtype);
    CHECK(conv_transpose2d(x, w, {}, {.output_padding = 1, .dilation = 2}).shape() ==
          Shape{1, 3, 9, 9});
  }
}

}  // namespace
}  // namespace halftone::test::conv_geometries_test

// Convolution as implicit products, called directly: the backend uses it only if oneDNN declines,
// so other tests may never run it. In f32 and, on a CPU with instructions for it, in bf16. Compared
// with the reference in f64, for windows at every kind of edge; the same bits for any number of
// threads.

namespace halftone::test::conv_products_test {
namespace {

struct Case {
  Shape x, w;
  ConvGeometry g;
  bool bias = true;
};

std::vector<Case> cases() {
  std::vector<Case> all{
      {{2, 5, 9, 8}, {7, 5, 3, 3}, {.stride = {1, 1}, .padding = {1, 1}}},
      {{3, 1, 28, 28}, {32, 1, 3, 3}, {.stride = {1, 1}, .padding = {1, 1}}},
      {{2, 3, 33, 31}, {64, 3, 7, 7}, {.stride = {2, 2}, .padding = {3, 3}}},
      {{2, 3, 5, 40}, {8, 3, 2, 5}, {.stride = {1, 3}, .padding = {0, 4}}, false},
      {{4, 16, 7, 7}, {20, 16, 1, 1}, {.stride = {2, 2}}},
      {{1, 48, 15, 15}, {96, 48, 3, 3}, {.stride = {1, 1}, .padding = {1, 1}}},
      {{2, 6, 11, 7},
       {10, 3, 3, 5},
       {.stride = {2, 2}, .padding = {2, 2}, .dilation = {2, 2}, .groups = 2}},
      {{1, 400, 5, 4}, {33, 400, 3, 2}, {.stride = {1, 1}, .padding = {1, 0}}},
      {{2, 5, 9, 9}, {7, 5, 3, 2}, {.stride = {3, 3}, .padding = {1, 1}}},
      {{1, 8, 6, 6}, {8, 8, 2, 2}, {.stride = {3, 3}}},  // pixels that are in no window
      {{2, 2, 4, 4},
       {4, 2, 3, 3},
       {.stride = {1, 1}, .padding = {5, 5}}},  // windows outside of the image
      {{1, 4, 9, 9}, {4, 4, 3, 3}, {.stride = {2, 2}, .padding = {2, 2}, .dilation = {4, 4}}},
      {{130, 9, 6, 6}, {40, 9, 3, 3}, {.stride = {1, 1}, .padding = {1, 1}}},
  };
  return all;
}

Tensor images(const Shape& shape, DType dtype) {
  return cast(views::channels_last(randn(shape)), dtype);
}

double error(const Tensor& found, const Tensor& wanted) {
  return max(abs(cast(found, f64) - wanted)).item() / max(abs(wanted)).item();
}

Tensor in_f64(const Tensor& x) { return x.defined() ? cast(x, f64) : x; }

/// y, dx and dw on `threads` threads.
using Results = std::array<Tensor, 3>;
Results run(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& dy,
            const ConvGeometry& g, int threads) {
  const Threads with(threads);
  const DType dtype = x.dtype();
  Tensor y = images(dy.shape(), dtype), dx = images(x.shape(), dtype), dw = randn(w.shape());
  if (cpu::depthwise_serves(x, w, g)) {
    cpu::depthwise_conv(x, w, bias, g, y);
    cpu::depthwise_backward_data(dy, w, g, dx);
    cpu::depthwise_backward_weights(x, dy, g, dw);
  } else if (dtype == f32) {
    cpu::conv_by_products(x, w, bias, g, y);
    cpu::conv_backward_data_by_products(dy, w, g, dx);
    cpu::conv_backward_weights_by_products(x, dy, g, dw);
  } else {
    cpu::conv_by_bf16_products(x, w, bias, g, y);
    cpu::conv_backward_data_by_bf16_products(dy, w, g, dx);
    cpu::conv_backward_weights_by_bf16_products(x, dy, g, dw);
  }
  return {y, dx, dw};
}

void check(const Case& c, DType dtype) {
  CAPTURE(c.x);
  CAPTURE(c.w);
  CAPTURE(std::string(name(dtype)));
  const NoGrad no_grad;
  Backend& reference = backend_for(Device::cpu());
  manual_seed(1);
  const Tensor x = images(c.x, dtype), w = cast(randn(c.w), dtype),
               bias = c.bias ? cast(randn({c.w[0]}), dtype) : Tensor();
  const Tensor wanted = conv2d(in_f64(x), in_f64(w), in_f64(bias),
                               {.stride = {c.g.stride[0], c.g.stride[1]},
                                .padding = {c.g.padding[0], c.g.padding[1]},
                                .dilation = {c.g.dilation[0], c.g.dilation[1]},
                                .groups = c.g.groups});
  const Tensor dy = images(wanted.shape(), dtype);
  const Results found = run(x, w, bias, dy, c.g, 2);
  Tensor dx_wanted = in_f64(images(c.x, dtype)), dw_wanted = in_f64(w), none;
  reference.conv_backward_data(in_f64(dy), in_f64(w), c.g, dx_wanted);
  reference.conv_backward_weights(in_f64(x), in_f64(dy), c.g, dw_wanted, none);
  // Sums in f32; a result in bf16 is rounded once.
  const auto bound = [](double terms, const Tensor& result) {
    return 4 * std::sqrt(terms) * epsilon(f32) + (result.dtype() == bf16 ? epsilon(bf16) : 0);
  };
  CHECK(error(found[0], wanted) <= bound(double(w.numel() / w.size(0)), found[0]));
  CHECK(error(found[1], dx_wanted) <= bound(double(w.numel()) / double(w.size(1)), found[1]));
  CHECK(error(found[2], dw_wanted) <=
        bound(double(wanted.numel()) / double(wanted.size(1)), found[2]));
  const Results alone = run(x, w, bias, dy, c.g, 1), many = run(x, w, bias, dy, c.g, 5);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(alone[i].to_vector<double>() == found[i].to_vector<double>());
    CHECK(many[i].to_vector<double>() == alone[i].to_vector<double>());
  }
}

TEST_CASE("convolution by products is the convolution, forward and backward") {
  for (const Case& c : cases()) {
    REQUIRE(cpu::products_serve(zeros(c.x), zeros(c.w), c.g));
    check(c, f32);
  }
}

TEST_CASE("a depthwise convolution is the convolution, forward and backward") {
  for (const Case& c : std::vector<Case>{
           {{2, 8, 9, 7}, {8, 1, 3, 3}, {.stride = {1, 1}, .padding = {1, 1}, .groups = 8}},
           {{3, 48, 15, 15}, {48, 1, 7, 7}, {.stride = {1, 1}, .padding = {3, 3}, .groups = 48}},
           {{2, 5, 11, 8},
            {5, 1, 3, 5},
            {.stride = {2, 3}, .padding = {2, 1}, .dilation = {2, 2}, .groups = 5}},
           {{1, 17, 6, 6}, {17, 1, 2, 2}, {.stride = {3, 3}, .groups = 17}, false},
           {{2, 3, 2, 2}, {3, 1, 3, 3}, {.stride = {1, 1}, .padding = {4, 4}, .groups = 3}},
           {{70, 1, 5, 5}, {1, 1, 1, 1}, {.stride = {1, 1}, .groups = 1}}}) {
    REQUIRE_FALSE(cpu::products_serve(zeros(c.x), zeros(c.w), c.g));
    REQUIRE(cpu::depthwise_serves(zeros(c.x), zeros(c.w), c.g));
    check(c, f32);
  }
}

TEST_CASE("convolution by bf16 products is the convolution, forward and backward") {
  int served = 0;
  std::vector<Case> all = cases();
  all.push_back({{1, 512, 5, 3}, {24, 512, 3, 3}, {.stride = {1, 1}, .padding = {1, 1}}});
  all.push_back({{2, 33, 8, 9}, {600, 33, 3, 3}, {.stride = {2, 1}, .padding = {1, 1}}});
  all.push_back({{3, 64, 13, 13}, {80, 32, 3, 3}, {.stride = {1, 1}, .groups = 2}});
  for (const Case& c : all)
    if (cpu::bf16_products_serve(zeros(c.x, bf16), zeros(c.w, bf16), c.g)) check(c, bf16), ++served;
  if (!has_bf16_products()) MESSAGE("skipped: no instructions for bf16 here");
  else CHECK(served == 11);
}

}  // namespace
}  // namespace halftone::test::conv_products_test

// Compares the primitives of oneDNN with the reference on a fixed part of the random geometries of
// onednn_fuzz.

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

TEST_CASE("convolutions in bf16 whose kernels are smaller than their strides are right") {
  // oneDNN 2.6 computes other numbers on AMX.
  for (const auto& [height, width, stride] :
       {std::tuple{1, 3, Pair{2, 3}}, {2, 1, {3, 1}}, {1, 5, {3, 3}}, {5, 2, {1, 3}}}) {
    CAPTURE(height);
    CAPTURE(width);
    const Tensor x = cast(randint(-3, 4, {2, 57, 47, 24}), bf16);
    const Tensor w = cast(randint(-3, 4, {15, 57, height, width}), bf16);
    const auto y = [&] { return conv2d(x, w, {}, {.stride = stride}).to_vector<double>(); };
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
