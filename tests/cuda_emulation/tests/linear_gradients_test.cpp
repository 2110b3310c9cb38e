// The gradients of a linear layer.
#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "emulator.h"

namespace halftone::test {
namespace {

struct Gradients {
  std::vector<float> weight, bias;
};

Gradients gradients_of(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto leaf = [](const Tensor& t) {
    Tensor copy = t.to(Device::cuda());
    return copy.set_requires_grad();
  };
  const Tensor w = leaf(weight), b = leaf(bias), y = linear(leaf(x), w, b);
  y.backward(ones(y.shape(), y.dtype(), y.device()));
  return {w.grad().to_vector<float>(), b.grad().to_vector<float>()};
}

TEST_CASE("f64 and empty rows have gradients of their bias as well") {
  const Gradients wide = gradients_of(randn({5, 3}, f64), randn({2, 3}, f64), randn({2}, f64));
  CHECK(wide.bias == std::vector<float>(2, 5));
  const Gradients empty = gradients_of(randn({0, 3}, f32), randn({2, 3}, f32), randn({2}, f32));
  CHECK(empty.bias == std::vector<float>(2, 0));
  CHECK(empty.weight == std::vector<float>(6, 0));
}

TEST_CASE("under autocast the gradient of an f32 bias is summed in f32") {
  manual_seed(4);
  nn::Linear layer(24, 16);
  layer.to(Device::cuda());
  const Tensor x = randn({64, 24}).to(Device::cuda());
  const int64_t products = emulation::products_done();
  {
    const amp::Autocast autocast(bf16);
    mean(layer(x)).backward();
  }
  CHECK(emulation::products_done() - products == 2);  // forward; x needs no gradient
  CHECK(layer.bias.grad().dtype() == f32);
  for (const float g : layer.bias.grad().to_vector<float>())
    CHECK(g == doctest::Approx(1.0 / 16).epsilon(1e-2));
}

}  // namespace
}  // namespace halftone::test
