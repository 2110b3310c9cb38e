// Clipping: the norm over all tensors, the factor, low-precision gradients, and values that are not
// finite.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/core/factory.h>
#include <halftone/optim/optimizer.h>
#include <halftone/optim/optimizers.h>

namespace halftone::test::clip_grad_test {

using namespace halftone::optim;

namespace {

Tensor with_gradient(const std::vector<double>& gradient, DType dtype = f32) {
  Tensor p = zeros({int64_t(gradient.size())}, dtype).set_requires_grad();
  p.set_grad(from_vector(gradient, p.shape(), dtype));
  return p;
}

}  // namespace

TEST_CASE("the norm is that of all gradients together") {
  const Tensor a = with_gradient({3, 0}), b = with_gradient({4}),
               idle = zeros({2}).set_requires_grad();
  const uint64_t version = a.grad().storage()->version();
  CHECK(clip_grad_norm({a, idle, b}, 2.5).item() == 5);
  CHECK(a.grad().to_vector<double>()[0] == doctest::Approx(3 * 2.5 / (5 + 1e-6)));
  CHECK(b.grad().item() == doctest::Approx(2));
  CHECK(a.grad().storage()->version() > version);
  CHECK_FALSE(idle.grad().defined());
}

TEST_CASE("gradients within the limit do not change a bit") {
  const Tensor a = with_gradient({0.3, -0.4});
  const std::vector<float> before = a.grad().to_vector<float>();
  const Tensor norm = clip_grad_norm({a}, 1);
  CHECK(norm.item() == doctest::Approx(0.5));
  CHECK(norm.dtype() == f32);
  CHECK(norm.shape() == Shape{});
  CHECK(a.grad().to_vector<float>() == before);
}

TEST_CASE("no gradients: the norm is 0") {
  CHECK(clip_grad_norm({zeros({2}).set_requires_grad()}, 1).item() == 0);
  CHECK(clip_grad_norm({}, 1).item() == 0);
}

TEST_CASE("the norm of f16 gradients does not overflow in f16") {
  const Tensor a = with_gradient({60000, 60000}, f16), b = with_gradient({1}, bf16);
  CHECK(clip_grad_norm({a, b}, 1).item() == doctest::Approx(60000 * std::sqrt(2.0)));
  CHECK(a.grad().dtype() == f16);
  CHECK(a.grad().to_vector<double>()[0] == doctest::Approx(std::sqrt(0.5)).epsilon(0.001));
}

TEST_CASE("gradients whose squares leave f32 are clipped as others") {
  for (const DType dtype : {f32, bf16})
    for (const double g : {1e19, 3e37, 1e-25, 1e-30}) {
      CAPTURE(g);
      const Tensor a = with_gradient(std::vector<double>(5000, g), dtype);
      const double before = a.grad().to_vector<double>()[0], norm = before * std::sqrt(5000.0),
                   limit = norm > 1 ? norm / 3 : 2;
      const double found = clip_grad_norm({a}, limit).item();
      if (norm < facts(f32).max) CHECK(found == doctest::Approx(norm).epsilon(1e-6));
      const double wanted = before * std::min(1.0, limit / (norm + 1e-6));
      CHECK(std::abs(a.grad().to_vector<double>()[0] - wanted) <= epsilon(dtype) * wanted);
    }
}

TEST_CASE("a value that is not finite is visible, or throws on request") {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor a = with_gradient({infinity, 1}), b = with_gradient({std::nan(""), 1});
  CHECK_THROWS_WITH_AS(
      clip_grad_norm({a}, 1, {.error_if_nonfinite = true}),
      "[clip_grad_norm] the norm of the gradients is inf. Unscale them first, or turn "
      "error_if_nonfinite off.",
      UsageError);
  CHECK(a.grad().to_vector<double>()[1] == 1);
  CHECK(clip_grad_norm({a}, 1).item() == infinity);
  CHECK(a.grad().to_vector<double>()[1] == 0);
  CHECK(std::isnan(clip_grad_norm({b}, 1).item()));
  CHECK(std::isnan(b.grad().to_vector<double>()[1]));
}

TEST_CASE("clipping by value, and through an optimizer's gradients") {
  const Tensor a = with_gradient({-3, 0.5, 2});
  clip_grad_value({a}, 1);
  CHECK(a.grad().to_vector<double>() == std::vector<double>{-1, 0.5, 1});
  std::vector<Tensor> gradients = Sgd({a}).gradients();
  clip_gradients_norm(gradients, 0.75);
  CHECK(a.grad().to_vector<double>()[0] == doctest::Approx(-0.5));
}

TEST_CASE("limits must not be negative") {
  CHECK_THROWS_WITH_AS(clip_grad_norm({}, -1), "[clip_grad_norm] max_norm is -1. Use 0 or more.",
                       UsageError);
  CHECK_THROWS_WITH_AS(clip_grad_value({}, -1), "[clip_grad_value] limit is -1. Use 0 or more.",
                       UsageError);
}

}  // namespace halftone::test::clip_grad_test
