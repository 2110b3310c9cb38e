// The product that computes the gradient of the weights also sums the gradient of a bias.
#include <doctest/doctest.h>

#include <halftone/halftone.h>

#include "emulator.h"

namespace halftone::test {
namespace {

struct Gradients {
  std::vector<float> x, weight, bias;
  int64_t kernels, products;
};

Gradients gradients_of(const Tensor& x, const Tensor& weight, const Tensor& bias, bool wants_bias) {
  const auto leaf = [](const Tensor& t, bool wants) {
    Tensor copy = t.to(Device::cuda());
    return copy.set_requires_grad(wants);
  };
  const Tensor in = leaf(x, true), w = leaf(weight, true), b = leaf(bias, wants_bias);
  const Tensor y = linear(in, w, b);
  const Tensor dy = full(y.shape(), 0.5, y.dtype(), y.device());
  Tensor slope = dy.clone();
  backend_for(slope).uniform(-1, 1, {.seed = 5}, slope);
  const int64_t kernels = emulation::kernel_launches(), products = emulation::products_done();
  y.backward(slope);
  const int64_t started = emulation::kernel_launches() - kernels,
                done = emulation::products_done() - products;
  return {in.grad().to_vector<float>(), w.grad().to_vector<float>(),
          wants_bias ? b.grad().to_vector<float>() : std::vector<float>{}, started, done};
}

TEST_CASE("the gradient of a bias needs no separate kernel") {
  manual_seed(3);
  for (const DType dtype : {f32, bf16, f16}) {
    INFO(std::string(name(dtype)));
    const Tensor x = randn({50, 24}, dtype), weight = randn({16, 24}, dtype),
                 bias = randn({16}, dtype);
    const Gradients with = gradients_of(x, weight, bias, true),
                    without = gradients_of(x, weight, bias, false);
    CHECK(with.kernels == without.kernels);
    CHECK(with.products == 2);
    CHECK(with.weight == without.weight);
    CHECK(with.x == without.x);
    // If that is refused, a separate pass sums it.
    emulation::refuse_algorithms(3);
    const Gradients alone = gradients_of(x, weight, bias, true);
    emulation::refuse_algorithms(0);
    REQUIRE(alone.bias.size() == with.bias.size());
    for (std::size_t i = 0; i < with.bias.size(); ++i)
      CHECK(with.bias[i] ==
            doctest::Approx(alone.bias[i]).epsilon(dtype == f32 ? 1e-6 : 2 * epsilon(dtype)));
  }
}

TEST_CASE("f64 and empty rows have gradients of their bias as well") {
  const Gradients wide =
      gradients_of(randn({5, 3}, f64), randn({2, 3}, f64), randn({2}, f64), true);
  CHECK(wide.bias.size() == 2);
  const Gradients empty =
      gradients_of(randn({0, 3}, f32), randn({2, 3}, f32), randn({2}, f32), true);
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
