// Gradients of every operation: against finite differences in f64, and, in lower precision, against
// the f64 gradient at the same (rounded) point.
#include "ops/properties.h"

#include <halftone/autograd/inspect.h>

namespace halftone::test::properties_gradients {
namespace {

constexpr double step = 1e-5;

Tensors differentiable_inputs(const Case& test) { return leaves_of(test, inputs_of(test, f64)); }

int64_t differentiable_elements(const Tensors& leaves) {
  int64_t count = 0;
  for (const Tensor& x : leaves)
    if (x.requires_grad()) count += x.numel();
  return count;
}

/// The effect of rounding on a difference quotient of the contracted result.
double quotient_noise(const Tensor& y) {
  double total = 0;
  for (const double v : y.to_vector<double>()) total += std::abs(v);
  return 8 * epsilon(f64) * (1 + total) / step;
}

double contracted(const Tensor& y, const Values& seed) {
  const Values values = y.to_vector<double>();
  double total = 0;
  for (std::size_t i = 0; i < values.size(); ++i) total += values[i] * seed[i];
  return total;
}

/// For inputs too large to probe one by one: the derivative along one random direction through all.
void check_direction(const Case& test, const Tensors& leaves) {
  const Tensor y = test.call(leaves);
  const Tensor seed = seed_for(y);
  y.backward(seed);
  const Values weights = seed.to_vector<double>();
  double analytic = 0, magnitude = 0;
  Tensors ahead, behind;
  Draw draw(11);
  for (const Tensor& leaf : leaves) {
    ahead.push_back(leaf), behind.push_back(leaf);
    if (!leaf.requires_grad()) continue;
    Values up = leaf.to_vector<double>(), down = up;
    const Values gradient = leaf.grad().to_vector<double>();
    for (std::size_t i = 0; i < up.size(); ++i) {
      const double direction = draw.word() % 2 ? 1 : -1;
      up[i] += step * direction, down[i] -= step * direction;
      analytic += gradient[i] * direction, magnitude += std::abs(gradient[i]);
    }
    ahead.back() = from_vector(up, leaf.shape(), f64, leaf.device()),
    behind.back() = from_vector(down, leaf.shape(), f64, leaf.device());
  }
  const double numeric =
      (contracted(test.call(ahead), weights) - contracted(test.call(behind), weights)) / (2 * step);
  CHECK(std::abs(numeric - analytic) <= quotient_noise(y) + 1e-7 * magnitude);
}

TEST_CASE("f64 gradients are those of finite differences") {
  constexpr std::array dtypes{f64};
  each_case(dtypes, [](const OpSamples&, const Case& test, DType) {
    if (!test.gradient || !test.smooth) return;
    const Tensors leaves = differentiable_inputs(test);
    if (differentiable_elements(leaves) > 64) return check_direction(test, leaves);
    const GradcheckOptions options{.step = step,
                                   .absolute_tolerance = quotient_noise(test.call(leaves))};
    const GradcheckResult result = gradcheck(test.call, leaves, options);
    CHECK_MESSAGE(result.passed, result.message);
  });
}

TEST_CASE(
    "gradients in lower precision are the f64 gradients, and have their input's dtype and shape") {
  constexpr std::array dtypes{f32, bf16, f16};
  each_case(dtypes, [](const OpSamples&, const Case& test, DType dtype) {
    if (!test.gradient) return;
    const Tensors inputs = inputs_of(test, dtype);
    const Outcome low = run_case(test, inputs);
    const Tensor seed = seed_for(low.y);
    // Operations with a fixed result dtype (cast) start from that dtype also in f64.
    const Outcome wide = run_case(test, widened(inputs), test.output ? seed : cast(seed, f64));
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!test.inputs[i].differentiable()) continue;
      INFO("input ", i);
      REQUIRE(low.gradients[i].defined());
      CHECK(low.gradients[i].dtype() == inputs[i].dtype());
      CHECK(low.gradients[i].shape() == inputs[i].shape());
      CHECK(mismatch(low.gradients[i], wide.gradients[i].to_vector<double>(),
                     gradient_tolerance(test, dtype, low.y.numel())) == "");
    }
  });
}

}  // namespace
}  // namespace halftone::test::properties_gradients
