// Lesson 30: gradients that have gradients. You will differentiate a function twice, train with a
// penalty on the gradient in f16 under a loss scale, and measure the curvature of a loss: which
// layers it bends in most, and the largest learning rate that its sharpest direction permits.
#include <cmath>
#include <iostream>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;
using Tensors = std::vector<ht::Tensor>;

namespace {

void title(const char* text) { std::cout << "\n--- " << text << "\n\n"; }

bool differentiate_twice() {
  title("a function, its gradient, and the gradient of that");
  ht::Tensor x = ht::linspace(0, 3, 4, ht::f64);
  x.set_requires_grad();
  const ht::Tensor y = ht::sum(ht::sin(x));
  // create_graph: the gradient is made of recorded operations, like any other result.
  const ht::Tensor first = ht::autograd::grad(y, {x}, {.create_graph = true})[0];
  const ht::Tensor second = ht::autograd::grad(ht::sum(first), {x})[0];
  std::cout << "x " << x.detach() << "\ncos " << first.detach() << "\n-sin " << second << '\n';
  return ht::max(ht::abs(second + ht::sin(x))).item() < 1e-15;
}

/// The squared length of all gradients.
ht::Tensor squared_length(const Tensors& gradients) {
  ht::Tensor total = ht::sum(ht::square(gradients[0]));
  for (std::size_t i = 1; i < gradients.size(); ++i)
    total = total + ht::sum(ht::square(gradients[i]));
  return total;
}

/// Two interleaved half circles, blurred.
struct Moons {
  ht::Tensor points, classes;
  explicit Moons(int64_t count) {
    const ht::Tensor side = ht::randint(0, 2, {count}), sign = ht::cast(side * 2 - 1, ht::f32);
    const ht::Tensor angle = ht::rand({count}) * 3.14159;
    const ht::Tensor shift = ht::cast(side, ht::f32);
    points = ht::stack({ht::cos(angle) * sign + shift, ht::sin(angle) * sign + shift * 0.5}, 1) +
             ht::randn({count, 2}) * 0.3;
    classes = side;
  }
};

ht::nn::Sequential network() {
  ht::manual_seed(1);
  return ht::nn::Sequential{ht::nn::Linear(2, 64), ht::nn::Tanh(), ht::nn::Linear(64, 64),
                            ht::nn::Tanh(), ht::nn::Linear(64, 2)};
}

/// Trains in f16 under a loss scale, with `weight` times the squared length of the gradient in the
/// loss; returns the mean of that length over the last quarter of the steps.
double train_with_penalty(ht::nn::Sequential& model, double weight) {
  ht::optim::Adam optimizer(model.parameters(), {.lr = 3e-3});
  ht::amp::GradScaler scaler({.init_scale = 1024});
  const int steps = 400;
  double length = 0;
  for (int step = 0; step < steps; ++step) {
    const Moons batch(128);
    optimizer.zero_grad();
    const ht::Tensor loss = ht::amp::autocast(
        ht::f16, [&] { return ht::cross_entropy(model(batch.points), batch.classes); });
    // Scale the loss, so that no gradient vanishes in f16; divide the gradients by hand, because
    // the penalty must not depend on the scale; then scale the whole loss as usual.
    Tensors gradients =
        ht::autograd::grad(scaler.scale(loss), model.parameters(), {.create_graph = true});
    for (ht::Tensor& g : gradients) g = g * (1 / scaler.scale_value());
    const ht::Tensor penalty = squared_length(gradients);
    scaler.scale(loss + penalty * weight).backward();
    scaler.step(optimizer);
    scaler.update();
    if (step >= steps * 3 / 4) length += penalty.item() / (steps / 4.0);
  }
  return length;
}

double accuracy(const ht::nn::Sequential& model, const Moons& data) {
  const ht::NoGrad no_grad;
  return ht::mean(ht::argmax(model(data.points), 1) == data.classes, ht::f32).item();
}

void measure(const char* name, const ht::nn::Sequential& model, const Moons& data) {
  const ht::Tensor loss = ht::cross_entropy(model(data.points), data.classes);
  const Tensors parameters = model.parameters();
  const auto sharpest = ht::autograd::largest_hessian_eigenvalue(loss, parameters);
  std::cout << name << ": accuracy " << accuracy(model, data) << ", largest eigenvalue "
            << sharpest.value << " (residual " << sharpest.residual << " after " << sharpest.steps
            << " products)\n";
  const auto traces = ht::autograd::hutchinson_trace(loss, parameters, {.samples = 64});
  const auto names = model.named_parameters();
  for (std::size_t i = 0; i < traces.size(); ++i)
    std::cout << "  " << names[i].first << ": trace " << traces[i].trace << " in [" << traces[i].low
              << ", " << traces[i].high << "]\n";
}

}  // namespace

int main() {
  const bool correct = differentiate_twice();
  title("a training with a penalty on the gradient, in f16");
  ht::nn::Sequential plain = network(), flat = network();
  std::cout << "mean squared length of the last gradients: " << train_with_penalty(plain, 0)
            << " without, " << train_with_penalty(flat, 1) << " with the penalty\n";
  title("the curvature of both, by products with second derivatives");
  const Moons data(1000);
  measure("without", plain, data);
  measure("with", flat, data);
  return after_output(correct ? 0 : 1);
}

// Conclusion. With create_graph a gradient is a result like others: it can be part of a loss, and a
// second backward() differentiates it. A product with second derivatives costs about two backward
// passes; the matrix is never stored.
//
// Exercises
// 1 (pencil). Gradient descent with step size lr on a x^2 / 2 multiplies x by 1 - lr a. For which
// lr
//   does x grow? Which lr does the largest eigenvalue above permit?
// 2 (predict). Leave out the division by the scale. What does the penalty do to the training?
// 3 (implement). A penalty on the gradient by the inputs, as WGAN-GP's: its length should be 1.
