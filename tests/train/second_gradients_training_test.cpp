// Trainings whose loss contains gradients: each reaches a stated error.
#include <doctest/doctest.h>

#include <cmath>
#include <numbers>

#include <halftone/halftone.h>

namespace halftone::test::second_gradients_training_test {
namespace {

using Tensors = std::vector<Tensor>;

nn::Sequential smooth_mlp(int64_t in, int64_t width, int64_t out) {
  return nn::Sequential{nn::Linear(in, width), nn::Tanh(), nn::Linear(width, width), nn::Tanh(),
                        nn::Linear(width, out)};
}

// WGAN-GP (Gulrajani et al. 2017): the critic's gradient has length 1 between real and made points.

/// Points on two clusters of different sizes.
Tensor real_points(int64_t count) {
  const Tensor centers = reshape(from({2.0, 0.0, -1.0, 1.0}, f32), {2, 2});
  return index_select(centers, 0, randint(0, 2, {count})) + randn({count, 2}) * 0.2;
}

Tensor gradient_penalty(const nn::Sequential& critic, const Tensor& real, const Tensor& made) {
  const Tensor share = rand({real.size(0), 1});
  const Tensor between = (real * share + made * (1.0 - share)).detach().set_requires_grad();
  const Tensor g = autograd::grad(sum(critic(between)), {between}, {.create_graph = true})[0];
  return mean(square(norm(g, {1}) - 1.0));
}

TEST_CASE("WGAN-GP: made points get the mean and the spread of the real ones") {
  manual_seed(1);
  nn::Sequential critic{nn::Linear(2, 64), nn::LeakyRelu(0.2), nn::Linear(64, 64),
                        nn::LeakyRelu(0.2), nn::Linear(64, 1)};
  nn::Sequential generator{nn::Linear(2, 64), nn::Relu(), nn::Linear(64, 64), nn::Relu(),
                           nn::Linear(64, 2)};
  optim::Adam of_critic(critic.parameters(), {.lr = 1e-3, .betas = {0.5, 0.9}});
  optim::Adam of_generator(generator.parameters(), {.lr = 1e-3, .betas = {0.5, 0.9}});
  double penalty = 0;
  for (int step = 0; step < 400; ++step) {
    for (int i = 0; i < 3; ++i) {
      of_critic.zero_grad();
      const Tensor real = real_points(128), made = generator(randn({128, 2})).detach();
      const Tensor p = gradient_penalty(critic, real, made);
      (mean(critic(made)) - mean(critic(real)) + p * 10.0).backward();
      of_critic.step();
      penalty = p.item();
    }
    of_generator.zero_grad();
    mean(neg(critic(generator(randn({128, 2}))))).backward();
    of_generator.step();
  }
  const NoGrad no_grad;
  const Tensor made = generator(randn({2000, 2})), real = real_points(2000);
  for (int64_t d : {0, 1}) {
    const Tensor a = select(made, 1, d), b = select(real, 1, d);
    CHECK(std::abs(mean(a).item() - mean(b).item()) < 0.25);
    CHECK(std::abs(halftone::std(a).item() - halftone::std(b).item()) < 0.25);
  }
  CHECK(penalty < 0.1);
}

// A physics-informed fit (Raissi et al. 2019).

TEST_CASE("Poisson: a network whose second derivative is given has the known values") {
  manual_seed(2);
  nn::Sequential u = smooth_mlp(1, 24, 1);
  optim::Adam adam(u.parameters(), {.lr = 5e-3});
  const double pi = std::numbers::pi;
  const Tensor inside = reshape(linspace(0, 1, 40, f32), {40, 1}).set_requires_grad();
  const Tensor ends = reshape(from({0, 1}, f32), {2, 1});
  const Tensor wanted = sin(inside.detach() * pi) * (-pi * pi);  // u'' of sin(pi x)
  const int steps = 800;
  for (int step = 0; step < steps; ++step) {
    adam.set_lr(5e-3 * (1 - double(step) / steps));
    adam.zero_grad();
    const Tensor first = autograd::grad(sum(u(inside)), {inside}, {.create_graph = true})[0];
    const Tensor second = autograd::grad(sum(first), {inside}, {.create_graph = true})[0];
    (mean(square(second - wanted)) + mean(square(u(ends))) * 100.0).backward();
    adam.step();
  }
  const NoGrad no_grad;
  const Tensor error = abs(u(inside) - sin(inside * pi));
  CHECK(max(error).item() < 0.02);
}

// MAML (Finn et al. 2017): the loss after a step of gradient descent, as a function of the start.

Tensor small_network(const Tensors& p, const Tensor& x) {
  return linear(tanh(linear(x, p[0], p[1])), p[2], p[3]);
}
Tensor after_a_step(const Tensors& start, const Tensor& x, const Tensor& y, const Tensor& x_new,
                    const Tensor& y_new) {
  const Tensors g = autograd::grad(mse(small_network(start, x), y), start, {.create_graph = true});
  Tensors moved;
  for (std::size_t i = 0; i < start.size(); ++i) moved.push_back(start[i] - g[i] * 0.1);
  return mse(small_network(moved, x_new), y_new);
}

TEST_CASE("MAML: the gradient through a step is the difference quotient") {
  manual_seed(3);
  Tensors start{randn({8, 1}, f64), randn({8}, f64), randn({1, 8}, f64), randn({1}, f64)};
  for (Tensor& p : start) p.set_requires_grad();
  const Tensor x = randn({10, 1}, f64), x_new = randn({10, 1}, f64);
  const Tensor y = sin(x), y_new = sin(x_new);
  const Tensors g = autograd::grad(after_a_step(start, x, y, x_new, y_new), start);
  for (std::size_t i = 0; i < start.size(); ++i) {
    const Tensor direction = randn(start[i].shape(), f64);
    const auto at = [&](double by) {
      Tensors there = start;
      there[i] = (start[i].detach() + direction * by).set_requires_grad();
      return after_a_step(there, x, y, x_new, y_new).item();
    };
    const double numeric = (at(1e-5) - at(-1e-5)) / 2e-5, exact = sum(g[i] * direction).item();
    CHECK(std::abs(exact - numeric) <= 1e-8 * (1 + std::abs(exact)));
  }
}

TEST_CASE("MAML: a start from which one step fits any sine of a family") {
  manual_seed(4);
  Tensors start{randn({20, 1}), randn({20}), randn({1, 20}) * 0.2, zeros({1})};
  for (Tensor& p : start) p.set_requires_grad();
  optim::Adam adam(start, {.lr = 1e-2});
  const auto of_a_task = [&] {
    const double phase = rand({1}).item() * 3;
    const Tensor x = rand({20, 1}) * 4.0 - 2.0, x_new = rand({20, 1}) * 4.0 - 2.0;
    return after_a_step(start, x, sin(x + phase), x_new, sin(x_new + phase));
  };
  double first = 0, last = 0;
  for (int step = 0; step < 300; ++step) {
    adam.zero_grad();
    Tensor loss = of_a_task();
    for (int task = 1; task < 4; ++task) loss = loss + of_a_task();
    loss.backward();
    adam.step();
    if (step < 20) first += loss.item() / 80;
    if (step >= 280) last += loss.item() / 80;
  }
  CHECK(last < 0.35 * first);
}

}  // namespace
}  // namespace halftone::test::second_gradients_training_test
