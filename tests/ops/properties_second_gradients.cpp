// Gradients of gradients, of every operation on every backend: with create_graph the first gradient
// is that of backward(), the second is the difference quotient of the first for any strides, and
// the third that of the second.
#include "ops/properties.h"

#include <halftone/autograd/engine.h>

namespace halftone::test::properties_second_gradients {
namespace {

constexpr double step = 1e-5;

/// One direction through all inputs that are differentiated, and one weight for each gradient.
Tensors drawn_like(const Tensors& leaves, uint64_t seed) {
  Draw draw(seed);
  Tensors drawn;
  for (const Tensor& x : leaves) {
    Values values(x.defined() ? std::size_t(x.numel()) : 0);
    for (double& v : values) v = draw.uniform(0.5, 1) * (draw.word() % 2 ? 1 : -1);
    drawn.push_back(x.defined() && x.requires_grad()
                        ? from_vector(values, x.shape(), f64, x.device())
                        : Tensor{});
  }
  return drawn;
}

Tensors moved(const Tensors& leaves, const Tensors& along, double by) {
  Tensors result;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!along[i].defined()) {
      result.push_back(leaves[i]);
      continue;
    }
    const NoGrad no_grad;
    result.push_back((leaves[i].detach() + along[i] * by).set_requires_grad());
  }
  return result;
}

Tensors differentiated(const Tensors& leaves) {
  Tensors result;
  for (const Tensor& x : leaves)
    if (x.defined() && x.requires_grad()) result.push_back(x);
  return result;
}

/// sum_i gradient_i weight_i.
Tensor contracted(const Tensors& gradients, const Tensors& weights) {
  Tensor total = zeros({}, f64, test_device());
  std::size_t next = 0;
  for (const Tensor& w : weights)
    if (w.defined()) {
      const Tensor& g = gradients[next++];
      if (g.defined()) total = total + sum(g * w);
    }
  return total;
}

Tensors gradients_of(const Tensor& y, const Tensors& leaves, bool create_graph,
                     const Tensor& seed = {}) {
  return autograd::grad(std::span(&y, 1), differentiated(leaves),
                        {.grad_outputs = {seed.defined() ? seed : Tensor{}},
                         .retain_graph = true,
                         .allow_unused = true,
                         .create_graph = create_graph});
}

/// The first gradient, contracted: without create_graph.
double first(const Case& test, const Tensors& leaves, const Tensor& seed, const Tensors& weights) {
  const Tensor y = test.call(leaves);
  return contracted(gradients_of(y, leaves, false, seed), weights).item();
}
/// The derivative of first() along a direction, by create_graph.
Tensor second(const Case& test, const Tensors& leaves, const Tensor& seed, const Tensors& weights,
              const Tensors& along, bool create_graph) {
  const Tensor h = contracted(gradients_of(test.call(leaves), leaves, true, seed), weights);
  if (!h.requires_grad()) return h * 0.0;
  return contracted(gradients_of(h, leaves, create_graph), along);
}

double size_of(const Tensors& tensors) {
  double total = 0;
  for (const Tensor& x : tensors)
    if (x.defined())
      for (const double v : x.to_vector<double>()) total += std::abs(v);
  return total;
}

/// Checks that the gradient with a history is that of backward(), and returns it.
Tensors check_first(const Case& test, const Tensors& leaves, const Tensor& seed) {
  const Tensor y = test.call(leaves);
  const Tensors plain = gradients_of(y, leaves, false, seed.detach());
  const Tensors recorded = gradients_of(y, leaves, true, seed);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    if (!plain[i].defined()) continue;
    INFO("gradient ", i);
    REQUIRE(recorded[i].defined());
    CHECK(recorded[i].shape() == plain[i].shape());
    CHECK(mismatch(recorded[i], plain[i].to_vector<double>(),
                   twice(gradient_tolerance(test, f64, y.numel()))) == "");
  }
  return recorded;
}

/// The first gradient is linear in the gradient that it starts from.
void check_linear(const Tensor& contracted_first, const Tensor& seed, double scale) {
  if (!contracted_first.requires_grad() || seed.dtype() != f64) return;
  const Tensor dseed =
      autograd::grad(contracted_first, {seed}, {.retain_graph = true, .allow_unused = true})[0];
  if (!dseed.defined()) return;
  const double again = sum(dseed * seed.detach()).item();
  INFO("by dy: ", again, " instead of ", contracted_first.item());
  CHECK(std::abs(again - contracted_first.item()) <= 1e-9 * scale);
}

void check(const Case& test) {
  const Tensors leaves = leaves_of(test, inputs_of(test, f64));
  if (differentiated(leaves).empty()) return;
  const Tensor y = test.call(leaves).detach();
  const Tensor seed = seed_for(y);
  const Tensors weights = drawn_like(leaves, 3), along = drawn_like(leaves, 5);
  const Tensor differentiated_seed = seed.clone().set_requires_grad();
  const Tensors recorded = check_first(test, leaves, differentiated_seed);
  const double scale = 1 + size_of(recorded) + size_of({y});
  check_linear(contracted(recorded, weights), differentiated_seed, scale);
  if (!test.smooth) return;

  const double noise = 64 * epsilon(f64) * scale / step + 1e-6 * test.condition;
  const auto quotient = [&](const auto& f) {
    return (f(moved(leaves, along, step)) - f(moved(leaves, along, -step))) / (2 * step);
  };
  const auto second_at = [&](const Tensors& there) {
    return second(test, there, seed, weights, along, false).item();
  };
  const double two = second_at(leaves);
  const double by_quotient =
      quotient([&](const Tensors& there) { return first(test, there, seed, weights); });
  INFO("second: ", two, ", quotient ", by_quotient);
  CHECK(std::abs(two - by_quotient) <= noise + 1e-5 * std::abs(by_quotient));
  for (Tensor (*laid_out)(const Tensor&) : {&reversed, &stepped}) {
    if (!test.any_strides) break;
    Tensors other;
    for (const Tensor& x : leaves)
      other.push_back(x.defined() ? laid_out(x.detach()).set_requires_grad(x.requires_grad()) : x);
    CHECK(std::abs(second_at(other) - two) <= 1e-9 * (scale + std::abs(two)));
  }

  // With one input that is differentiated at a time, operations may save less.
  for (std::size_t i = 0; i < leaves.size() && differentiated(leaves).size() > 1; ++i) {
    if (!along[i].defined()) continue;
    Tensors alone, its_weights(leaves.size()), its_direction(leaves.size());
    for (const Tensor& x : leaves) alone.push_back(x.defined() ? x.detach() : x);
    alone[i].set_requires_grad();
    its_weights[i] = weights[i], its_direction[i] = along[i];
    const double own = second(test, alone, seed, its_weights, its_direction, false).item();
    const double own_quotient =
        (first(test, moved(alone, its_direction, step), seed, its_weights) -
         first(test, moved(alone, its_direction, -step), seed, its_weights)) /
        (2 * step);
    INFO("input ", i, " alone: ", own, ", quotient ", own_quotient);
    CHECK(std::abs(own - own_quotient) <= noise + 1e-5 * std::abs(own_quotient));
  }

  const Tensor recorded_two = second(test, leaves, seed, weights, along, true);
  if (!recorded_two.requires_grad()) return;
  const double three = contracted(gradients_of(recorded_two, leaves, false), along).item();
  const double three_by_quotient = quotient(second_at);
  INFO("third: ", three, ", quotient ", three_by_quotient);
  CHECK(std::abs(three - three_by_quotient) <=
        10 * noise + 1e-4 * (std::abs(three_by_quotient) + std::abs(two)));
}

TEST_CASE("gradients of gradients are those of finite differences") {
  constexpr std::array dtypes{f64};
  each_case(dtypes, [](const OpSamples& samples, const Case& test, DType) {
    if (test.gradient && samples.name != "checkpoint") check(test);
  });
}

TEST_CASE("second gradients in lower precision are near those of f64, in their input's dtype") {
  constexpr std::array dtypes{f32, bf16, f16};
  each_case(dtypes, [](const OpSamples& samples, const Case& test, DType dtype) {
    if (!test.gradient || samples.name == "checkpoint") return;
    const Tensors inputs = inputs_of(test, dtype);
    const auto second_gradients = [&](const Tensors& values, double& size) {
      const Tensors leaves = leaves_of(test, values);
      const Tensor y = test.call(leaves);
      const Tensors g = gradients_of(y, leaves, true, seed_for(y));
      Tensor total = zeros({}, f64, test_device());
      for (const Tensor& x : g)
        if (x.defined()) total = total + sum(cast(x, f64) * seed_for(cast(x.detach(), f64)));
      size += size_of(g);
      const Tensors none(g.size());
      const Tensors second = total.requires_grad() ? gradients_of(total, leaves, false) : none;
      size += size_of(second);
      return second;
    };
    double size = 1, of_low = 0;
    const Tensors low = second_gradients(inputs, of_low);
    const Tensors wide = second_gradients(widened(inputs), size);
    const Tensors asked = differentiated(leaves_of(test, inputs));
    for (std::size_t i = 0; i < low.size(); ++i) {
      INFO("input ", i);
      if (!low[i].defined()) continue;
      CHECK(low[i].dtype() == asked[i].dtype());
      CHECK(low[i].shape() == asked[i].shape());
      REQUIRE(wide[i].defined());
      const Tolerance allowed{.absolute =
                                  16 * test.condition * epsilon(result_dtype(test, dtype)) * size};
      CHECK(mismatch(low[i], wide[i].to_vector<double>(), allowed) == "");
    }
  });
}

}  // namespace
}  // namespace halftone::test::properties_second_gradients
