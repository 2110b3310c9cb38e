// Gradients that have a history: what they are, who owns them, when they are freed, and refusals.
#include <doctest/doctest.h>

#include <cmath>

#include <halftone/autograd/curvature.h>
#include <halftone/autograd/engine.h>
#include <halftone/autograd/history.h>
#include <halftone/autograd/ops.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>

#include "../support.h"

namespace halftone::test::second_gradients_test {
namespace {

using Values = std::vector<double>;
using Tensors = std::vector<Tensor>;

Values values(const Tensor& x) { return x.to_vector<double>(); }
Tensor leaf(std::initializer_list<double> numbers, DType dtype = f64) {
  return from(numbers, dtype).set_requires_grad();
}
Tensor with_graph(const Tensor& y, const Tensor& x) {
  return autograd::grad(y, {x}, {.create_graph = true})[0];
}
int64_t allocated() { return memory_report().total_now; }

TEST_CASE("three gradients of a power, and of a sigmoid") {
  const Tensor x = leaf({2, -1});
  const Tensor first = with_graph(sum(pow(x, 5)), x);
  CHECK(first.requires_grad());
  CHECK(values(first) == Values{80, 5});
  const Tensor second = with_graph(sum(first), x);
  CHECK(values(second) == Values{160, -20});
  const Tensor third = with_graph(sum(second), x);
  CHECK(values(third) == Values{240, 60});
  CHECK(message_of<UnsupportedError>([&] { autograd::grad(sum(third), {x}); }) ==
        "[pow] has no 4th gradient: formulas have three. Use a difference quotient of the third.");
  const Tensor z = leaf({0.5});
  const Tensor s = sigmoid(z);
  const double y = s.item();
  const Tensor ds = with_graph(s, z);
  CHECK(ds.item() == y * (1 - y));
  CHECK(with_graph(ds, z).item() == doctest::Approx(y * (1 - y) * (1 - 2 * y)).epsilon(1e-15));
}

TEST_CASE("higher derivatives are finite where the first is") {
  for (const double at : {-1000.0, -30.0, 0.0, 30.0, 1000.0})
    for (Tensor (*f)(const Tensor&) :
         {+[](const Tensor& x) { return silu(x); }, +[](const Tensor& x) { return logsigmoid(x); },
          +[](const Tensor& x) { return softplus(x); }, +[](const Tensor& x) { return gelu(x); },
          +[](const Tensor& x) { return gelu_erf(x); }, +[](const Tensor& x) { return mish(x); },
          +[](const Tensor& x) { return tanh(x); }, +[](const Tensor& x) { return pow(x, 1); },
          +[](const Tensor& x) { return pow(x, 2); }}) {
      const Tensor x = leaf({at});
      const Tensor second = with_graph(with_graph(f(x), x), x);
      CHECK(std::isfinite(second.item()));
      if (second.requires_grad()) CHECK(std::isfinite(with_graph(second, x).item()));
    }
}

TEST_CASE("the gradient with a history has the bits of the one without, and all leaves get it") {
  Tensor x = leaf({0.3, -0.7, 1.1}, f32), w = leaf({0.5, 0.25, -2}, f32);
  const auto loss = [&] { return sum(tanh(x * w) / (1.0 + square(w)) + gelu(x)); };
  const Tensors plain = autograd::grad(loss(), {x, w});
  backward(loss(), {.create_graph = true});
  CHECK(values(x.grad()) == values(plain[0]));
  CHECK(values(w.grad()) == values(plain[1]));
  CHECK(x.grad().requires_grad());
  x.set_grad({}), w.set_grad({});
}

TEST_CASE("a penalty on the gradient: backward through it reaches every leaf") {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4});
  const Tensor g = with_graph(sum(x * x * w), x);  // 2 x w
  sum(g * g).backward();                           // 4 x^2 w^2
  CHECK(values(w.grad()) == Values{24, 128});
  CHECK(values(x.grad()) == Values{72, 256});
}

TEST_CASE("backward() with a graph: the gradient of a leaf can be part of the next loss") {
  Tensor w = leaf({3, 4});
  backward(sum(w * w * w), {.create_graph = true});  // 3 w^2
  const Tensor penalty = sum(w.grad() * w.grad());   // 9 w^4
  penalty.backward();                                // 36 w^3, added to 27 and 48
  CHECK(values(w.grad()) == Values{972 + 27, 2304 + 48});
  CHECK_FALSE(w.grad().requires_grad());  // that pass had no graph: the sum has no history
  // Two passes with a graph: the sum has the history of both.
  w.set_grad({});
  backward(sum(w * w), {.create_graph = true});
  backward(sum(w * w * w), {.create_graph = true});
  CHECK(values(w.grad()) == Values{33, 56});
  CHECK(values(autograd::grad(sum(w.grad()), {w})[0]) == Values{20, 26});  // 2 + 6 w
  w.set_grad({});
}

TEST_CASE("a gradient of a leaf with a history is a tensor of its own") {
  Tensor x = leaf({1, 2}), seed = from({5, 6}, f64);
  backward(reshape(x, {2, 1}), {.gradient = reshape(seed, {2, 1}), .create_graph = true});
  Tensor gradient = x.grad();
  backend_for(gradient).fill(0, gradient);
  CHECK(values(seed) == Values{5, 6});
  x.set_grad({});
  backward(x, {.gradient = seed, .create_graph = true});
  Tensor same = x.grad();
  backend_for(same).fill(0, same);
  CHECK(values(seed) == Values{5, 6});
  x.set_grad({});
  const Tensor transposed = reshape(leaf({1, 2, 3, 4, 5, 6}), {2, 3}).detach().set_requires_grad();
  backward(sum(transpose(transposed, 0, 1) * from({1, 2}, f64)), {.create_graph = true});
  CHECK(transposed.grad().is_contiguous());  // as optimizers read it
}

TEST_CASE("weights of the outputs can be differentiated as well") {
  const Tensor x = leaf({1, 2}), u = leaf({10, 100});
  const Tensor g =
      autograd::grad(x * x, {x}, {.grad_outputs = {u}, .create_graph = true})[0];  // 2 x u
  CHECK(values(autograd::grad(sum(g), {u}, {.retain_graph = true})[0]) == Values{2, 4});
  CHECK(values(autograd::grad(sum(g), {x})[0]) == Values{20, 200});
}

TEST_CASE("hooks see gradients with a history, and may change them") {
  const Tensor x = leaf({1, 2});
  const Tensor y = x * x;
  register_hook(y, [](const Tensor& g) { return g * 3.0; });
  const Tensor g = with_graph(sum(y * y), x);  // 3 * 4 x^3
  CHECK(values(g) == Values{12, 96});
  CHECK(values(autograd::grad(sum(g), {x})[0]) == Values{84, 336});  // 12 y + 3 (12 x) 2 x
}

TEST_CASE("only operations between outputs and inputs run") {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4});
  const Tensor no_second = checkpoint([&](const Tensors& in) { return in[0] * 2.0; }, {w});
  const Tensor g = with_graph(sum(x * x * x) + sum(no_second), x);
  CHECK(values(g) == Values{3, 12});
  CHECK(message_of<UnsupportedError>([&] { with_graph(sum(no_second), w); }) ==
        "[checkpoint] has no second gradient, which create_graph asks for. Compute the segment as "
        "it is: f(x) in place of checkpoint(f, {x}).");
}

TEST_CASE("the graph of gradients is freed: after use, and without use") {
  const int64_t before = allocated();
  {
    Tensor w = leaf({3, 4, 5});
    {
      const Tensor g = with_graph(sum(tanh(w) * w), w);
      const Tensor h = with_graph(sum(g * g), w);
      CHECK(h.requires_grad());
    }
    const Tensor g = with_graph(sum(tanh(w) * w), w);
    sum(g * g).backward();
    CHECK_THROWS_AS(sum(g * 2.0).backward(), UsageError);  // freed by the first
    w.set_grad({});
    backward(sum(w * w * w), {.create_graph = true});
    w.set_grad({});  // the gradient and its leaf owned each other
  }
  CHECK(allocated() == before);
}

TEST_CASE("a thousand penalties run in constant memory") {
  Tensor w = leaf({0.3, -0.2, 0.5, 0.1}), b = leaf({0.1, 0.2});
  const Tensor x = ones({8, 2}, f64);
  int64_t after_first = 0;
  for (int i = 0; i < 1000; ++i) {
    w.set_grad({}), b.set_grad({});
    const Tensor loss = sum(softmax(linear(x, reshape(w, {2, 2}), b), 1) * 2.0 + 1.0);
    const Tensors g = autograd::grad(loss, {w, b}, {.create_graph = true});
    (sum(g[0] * g[0]) + sum(g[1] * g[1])).backward();
    if (i == 0) after_first = allocated();
    if (i == 999) CHECK(allocated() == after_first);
  }
}

TEST_CASE("a saved tensor that was written in place is noticed by the second backward") {
  const Tensor x = leaf({1, 2}), w = leaf({3, 4});
  const Tensor g = with_graph(sum(x * x * w), x);
  copy_into(w.detach(), zeros({2}, f64));
  CHECK_THROWS_AS(sum(g).backward(), UsageError);
}

struct Cube : UserOp {
  static constexpr OpInfo info{"cube", CastClass::as_is};
  Tensor x{};
  Tensor forward(const Tensor& in) {
    x = in;
    return in * in * in;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {x * x * 3.0 * dy}; }
};
TEST_CASE("an operation of a user: refused by name") {
  const Tensor x = leaf({2});
  CHECK(message_of<UnsupportedError>([&] { with_graph(apply(Cube{}, x), x); }) ==
        "[cube] has no second gradient, which create_graph asks for: its backward is not made of "
        "operations. Use other operations in its place, or give it a member recorded_backward() "
        "(docs/adding_an_op.md).");
  CHECK(autograd::grad(apply(Cube{}, x), {x})[0].item() == 12);
}

struct Fifth : UserOp {
  static constexpr OpInfo info{"fifth", CastClass::as_is};
  Tensor x{};
  Tensor forward(const Tensor& in) {
    x = in;
    return in * in * in * in * in;
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {pow(x, 4) * 5.0 * dy}; }
  Gradients recorded_backward(const Tensor& dy, const History& history) const {
    return {pow(history.input(0, x), 4) * 5.0 * dy};
  }
};

TEST_CASE("an operation of a user with recorded_backward() has a second gradient") {
  const Tensor x = leaf({2});
  const Tensor g = with_graph(apply(Fifth{}, x), x);
  CHECK(g.item() == 80);
  CHECK(with_graph(g, x).item() == 160);
}

// Products with second derivatives.

TEST_CASE("products with the Hessian and the Jacobian of a known function") {
  const Tensor x = leaf({1, 2, 3}), y = leaf({0.5});
  const Tensor loss = sum(x * x * x) * y;  // H: diag(6 x y), 3 x^2 towards y
  const Tensors hv = autograd::hessian_vector_product(reshape(loss, {}), {x, y},
                                                      {from({1, 10, 100}, f64), from({2}, f64)});
  CHECK(values(hv[0]) == Values{3 + 6, 60 + 24, 900 + 54});
  CHECK(values(hv[1]) == Values{3 + 120 + 2700});
  CHECK_FALSE(x.grad().defined());
  const Tensors jv = autograd::jacobian_vector_product({x * x, exp(y)}, {x, y},
                                                       {from({1, 10, 100}, f64), from({2}, f64)});
  CHECK(values(jv[0]) == Values{2, 40, 600});
  CHECK(jv[1].item() == doctest::Approx(2 * std::exp(0.5)));
  const Tensors linear = autograd::hessian_vector_product(sum(x), {x}, {from({1, 1, 1}, f64)});
  CHECK(values(linear[0]) == Values{0, 0, 0});
  CHECK(message_of<ShapeError>(
            [&] { autograd::hessian_vector_product(sum(x), {x}, {from({1}, f64)}); }) ==
        "[hessian_vector_product] vector 0 is [1] f64, the input is [3] f64. They must agree.");
  CHECK_THROWS_AS(autograd::jacobian_vector_product({x}, {x}, {}), UsageError);
}

TEST_CASE("traces per parameter, and the largest eigenvalue, of a quadratic form") {
  manual_seed(7);
  // x A x / 2 + 3 y.y / 2, with A of known eigenvalues.
  const Tensor q = from({0.6, -0.8, 0.8, 0.6}, f64);
  const Tensor rotation = reshape(q, {2, 2}), sizes = from({5, -9}, f64);
  const Tensor a = matmul(rotation * sizes, transpose(rotation, 0, 1));
  const Tensor x = leaf({0.1, 0.2}), y = leaf({1, 2, 3});
  const Tensor loss = dot(x, matmul(a, x)) * 0.5 + sum(y * y) * 1.5;
  const auto traces = autograd::hutchinson_trace(loss, {x, y}, {.samples = 200});
  CHECK(traces[0].low <= -4);
  CHECK(traces[0].high >= -4);
  CHECK(traces[0].high - traces[0].low < 4);
  CHECK(traces[1].trace == doctest::Approx(9));  // a diagonal: no sample differs
  CHECK(traces[1].high - traces[1].low < 1e-9);
  const auto largest = autograd::largest_hessian_eigenvalue(loss, {x, y}, {.tolerance = 1e-8});
  CHECK(largest.value == doctest::Approx(-9));
  CHECK(largest.residual <= 1e-8);
  CHECK(largest.steps < 100);
  CHECK(std::abs(values(largest.vector[0])[0]) == doctest::Approx(0.8).epsilon(1e-6));
  CHECK_THROWS_AS(autograd::hutchinson_trace(loss, {x}, {.samples = 1}), UsageError);
  CHECK_THROWS_AS(autograd::largest_hessian_eigenvalue(loss, {}), UsageError);
}

TEST_CASE("the interval of a trace contains it as often as it says") {
  manual_seed(3);
  const Tensor x = leaf({0, 0, 0, 0, 0, 0});
  const Tensor matrix = randn({6, 6}, f64);
  const Tensor a = matrix + transpose(matrix, 0, 1);
  double trace = 0;
  for (int64_t i = 0; i < 6; ++i) trace += a.at({i, i});
  const Tensor loss = dot(x, matmul(a, x)) * 0.5;
  int inside = 0;
  for (int i = 0; i < 200; ++i) {
    const auto estimate = autograd::hutchinson_trace(loss, {x}, {.samples = 8})[0];
    inside += estimate.low <= trace && trace <= estimate.high ? 1 : 0;
  }
  CHECK(inside >= 180);  // 190 expected, standard deviation 3
}

}  // namespace
}  // namespace halftone::test::second_gradients_test
