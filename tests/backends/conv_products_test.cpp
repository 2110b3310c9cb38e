// Convolution as implicit products, called directly: it serves where oneDNN does not, so other
// tests may never meet it. Beside the reference in f64, of windows at every kind of edge; the same
// bits for any number of threads.
#include <doctest/doctest.h>

#include <cmath>

#include <halftone/autograd/ops.h>
#include <halftone/backends/cpu/conv_products.h>
#include <halftone/core/factory.h>
#include <halftone/core/views.h>

#include "threads.h"

namespace halftone::test {
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
      {{1, 8, 6, 6}, {8, 8, 2, 2}, {.stride = {3, 3}}},  // pixels that no window meets
      {{2, 2, 4, 4},
       {4, 2, 3, 3},
       {.stride = {1, 1}, .padding = {5, 5}}},  // windows beside the image
      {{1, 4, 9, 9}, {4, 4, 3, 3}, {.stride = {2, 2}, .padding = {2, 2}, .dilation = {4, 4}}},
      {{130, 9, 6, 6}, {40, 9, 3, 3}, {.stride = {1, 1}, .padding = {1, 1}}},
  };
  return all;
}

Tensor images(const Shape& shape) { return views::channels_last(randn(shape)); }

double error(const Tensor& found, const Tensor& wanted) {
  return max(abs(cast(found, f64) - wanted)).item() / max(abs(wanted)).item();
}

TEST_CASE("convolution by products is the convolution, forward and backward") {
  const NoGrad no_grad;
  Backend& reference = backend_for(Device::cpu());
  for (const Case& c : cases()) {
    CAPTURE(c.x);
    CAPTURE(c.w);
    manual_seed(1);
    const Tensor x = images(c.x), w = randn(c.w), bias = c.bias ? randn({c.w[0]}) : Tensor();
    const auto wide = [](const Tensor& t) { return t.defined() ? cast(t, f64) : t; };
    const Tensor wanted = conv2d(wide(x), wide(w), wide(bias),
                                 {.stride = {c.g.stride[0], c.g.stride[1]},
                                  .padding = {c.g.padding[0], c.g.padding[1]},
                                  .dilation = {c.g.dilation[0], c.g.dilation[1]},
                                  .groups = c.g.groups});
    const Tensor dy = images(wanted.shape());
    REQUIRE(cpu::products_serve(x, w, c.g));
    const auto run = [&](int threads) {
      const Threads with(threads);
      Tensor y = images(wanted.shape()), dx = images(c.x), dw = randn(c.w);
      cpu::conv_by_products(x, w, bias, c.g, y);
      cpu::conv_backward_data_by_products(dy, w, c.g, dx);
      cpu::conv_backward_weights_by_products(x, dy, c.g, dw);
      return std::array{y, dx, dw};
    };
    const auto [y, dx, dw] = run(2);
    Tensor dx_wanted = wide(images(c.x)), dw_wanted = wide(w), none;
    reference.conv_backward_data(wide(dy), wide(w), c.g, dx_wanted);
    reference.conv_backward_weights(wide(x), wide(dy), c.g, dw_wanted, none);
    const auto bound = [](double terms) { return 4 * std::sqrt(terms) * epsilon(f32); };
    const auto window = double(w.numel() / w.size(0));
    CHECK(error(y, wanted) <= bound(window));
    CHECK(error(dx, dx_wanted) <= bound(double(w.numel()) / double(w.size(1))));
    CHECK(error(dw, dw_wanted) <= bound(double(wanted.numel()) / double(wanted.size(1))));
    const auto alone = run(1), many = run(5);
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(alone[i].to_vector<float>() == std::array{y, dx, dw}[i].to_vector<float>());
      CHECK(many[i].to_vector<float>() == alone[i].to_vector<float>());
    }
  }
}

}  // namespace
}  // namespace halftone::test
