// A gradient penalty under autocast, loss scaling and policies. The recipe is that of
// docs/training.md: scale, gradients with a graph, unscale by hand, penalty, scale, backward.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>

#include <halftone/halftone.h>

#include "../support.h"

namespace halftone::test::gradient_penalty_test {
namespace {

using Tensors = std::vector<Tensor>;

nn::Sequential network() {
  manual_seed(5);
  return nn::Sequential{nn::Linear(8, 32), nn::Gelu(), nn::LayerNorm({32}), nn::Linear(32, 4)};
}

double distance(const Tensors& a, const Tensors& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const Tensor wanted = cast(b[i], f64), d = cast(a[i], f64) - wanted;
    difference += sum(d * d).item(), size += sum(wanted * wanted).item();
  }
  return std::sqrt(difference / size);
}

Tensors gradients_of(const nn::Sequential& model) {
  Tensors gradients;
  for (const Tensor& p : model.parameters()) gradients.push_back(p.grad().clone());
  return gradients;
}

Tensor penalty_of(const Tensors& gradients) {
  Tensor total = zeros({}, f32);
  for (const Tensor& g : gradients) total = total + sum(square(cast(g, f32)));
  return sqrt(total);
}

/// The gradients of loss + penalty, by PyTorch's recipe.
Tensors by_recipe(std::optional<DType> dtype, bool scaled) {
  nn::Sequential model = network();
  const Tensor x = randn({16, 8}), target = randint(0, 4, {16});
  optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
  amp::GradScaler scaler({.init_scale = 1024}, {.enabled = scaled});
  const auto in_region = [&](const std::function<Tensor()>& f) {
    return dtype ? amp::autocast(*dtype, f) : f();
  };
  const Tensor loss = in_region([&] { return cross_entropy(model(x), target); });
  Tensors gradients =
      autograd::grad(scaler.scale(loss), model.parameters(), {.create_graph = true});
  for (Tensor& g : gradients) {
    CHECK(g.dtype() == f32);
    g = g * (1 / scaler.scale_value());
  }
  const Tensor total = in_region([&] { return loss + penalty_of(gradients) * 0.5; });
  scaler.scale(total).backward();
  scaler.unscale(optimizer);
  const Tensors result = gradients_of(model);
  CHECK(bool(scaler.step(optimizer)));
  scaler.update();
  return result;
}

TEST_CASE("the recipe for a penalty under autocast and a scaler gives the gradients of f32") {
  const Tensors exact = by_recipe({}, false);
  CHECK(distance(by_recipe({}, true), exact) < 8 * epsilon(f32));
  CHECK(distance(by_recipe(f16, true), exact) < 8 * epsilon(f16));
  CHECK(distance(by_recipe(bf16, false), exact) < 8 * epsilon(bf16));
}

TEST_CASE("Training: the same recipe under every strategy, to its rounding") {
  Tensors exact;
  for (const std::string name : {"fp32", "amp-bf16", "amp-fp16", "o2-bf16", "full-bf16"}) {
    INFO(name);
    nn::Sequential model = network();
    const Tensor x = randn({16, 8}), target = randint(0, 4, {16});
    optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
    amp::Training training = amp::apply(amp::Policy::named(name), model, optimizer);
    Tensors result;
    for (bool stepped = false; !stepped;) {  // until the loss scale is low enough
      training.zero_grad();
      const Tensor loss = cross_entropy(training.forward(model, x), target);
      const double scale = training.scaler().scale_value();
      Tensors gradients = autograd::grad(loss * scale, model.parameters(), {.create_graph = true});
      for (Tensor& g : gradients) g = g * (1 / scale);
      training.backward(loss + penalty_of(gradients) * 0.5);
      result = gradients_of(model);
      for (Tensor& g : result) g = cast(g, f32) * (1 / scale);
      stepped = training.step();
    }
    if (exact.empty()) exact = result;
    const DType coarse = name == "fp32" ? f32 : name == "amp-fp16" ? f16 : bf16;
    CHECK(distance(result, exact) < 8 * epsilon(coarse));
  }
}

TEST_CASE("every policy: the gradient with a history is that without, and a penalty has one") {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(policies_directory()))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  CHECK(files.size() > 30);
  for (const std::filesystem::path& file : files) {
    INFO(file.filename().string());
    nn::Sequential model = network();
    const Tensor x = randn({16, 8}), target = randint(0, 4, {16});
    optim::Sgd optimizer(model.parameters(), {.lr = 0.1});
    amp::Training training = amp::apply(policy::read(file), model, optimizer);
    training.zero_grad();
    const Tensor loss = cross_entropy(training.forward(model, x), target);
    const Tensors plain = autograd::grad(loss, model.parameters(), {.retain_graph = true});
    const Tensors g = autograd::grad(loss, model.parameters(), {.create_graph = true});
    CHECK(distance(g, plain) < 8 * epsilon(bf16));
    const Tensors second = autograd::grad(penalty_of(g), model.parameters());
    for (const Tensor& d : second) CHECK(std::isfinite(sum(cast(d, f64)).item()));
  }
}

}  // namespace
}  // namespace halftone::test::gradient_penalty_test
