// Lesson 2: gradients. You will learn that operations are recorded when an input needs a gradient,
// how to check a gradient numerically, how to fit a function, how to write your own operation, and
// how to trade time for memory.
#include <cmath>
#include <iostream>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;

namespace {

void differentiate() {
  std::cout << "--- d/dx sum(x^3) = 3 x^2\n";
  ht::Tensor x = ht::from({1.0, 2, 3});
  x.set_requires_grad();
  const ht::Tensor y = ht::sum(ht::pow(x, 3));
  y.backward();
  std::cout << "y = " << y.item() << ", gradient " << x.grad() << '\n';
  // Gradients add up until they are cleared: optimizers have zero_grad() for that.
  ht::sum(x).backward();
  std::cout << "after backward() of sum(x) as well: " << x.grad() << '\n';
  const ht::NoGrad no_grad;
  std::cout << "inside NoGrad nothing is recorded: " << std::boolalpha << ht::exp(x).requires_grad()
            << '\n';
}

void check_numerically() {
  std::cout << "\n--- gradcheck: analytic against central differences, in f64\n";
  ht::manual_seed(0);
  ht::Tensor x = ht::randn({3, 4}, ht::f64);
  x.set_requires_grad();
  const auto function = [](const std::vector<ht::Tensor>& in) {
    return ht::gelu(ht::softmax(in[0], -1));
  };
  const ht::GradcheckResult result = ht::gradcheck(function, {x});
  std::cout << "gelu(softmax(x)): " << (result ? "passed" : result.message) << '\n';
}

/// Trains a small network on sin(x) and returns its last loss.
double fit_sine() {
  ht::manual_seed(0);
  const ht::Tensor x = ht::arange(-3, 3, 0.05).view_as({120, 1}, {1, 1}, 0);
  std::vector<double> sines = x.to_vector<double>();
  for (double& value : sines) value = std::sin(value);
  const ht::Tensor target = ht::from_vector(sines, {120, 1});

  const ht::nn::Sequential model{ht::nn::Linear(1, 32), ht::nn::Tanh(), ht::nn::Linear(32, 1)};
  ht::optim::Adam optimizer(model.parameters(), {.lr = 1e-2});
  double last = 0;
  for (int step = 0; step <= 500; ++step) {
    const ht::Tensor loss = ht::mse(model(x), target);
    optimizer.zero_grad();
    loss.backward();  // fills parameter.grad(), frees the graph
    optimizer.step();
    last = loss.item();
    if (step % 100 == 0) std::cout << "step " << step << ": loss " << last << '\n';
  }
  return last;
}

/// An operation is a struct: its name and cast class, what it saves, forward and backward. This one
/// rounds to bf16 and passes the gradient on unchanged (a straight-through estimator, Bengio et al.
/// 2013), which is how weights are trained that will be stored in few bits.
struct RoundToBf16 : ht::UserOp {
  static constexpr ht::OpInfo info{"round_to_bf16", ht::CastClass::as_is};
  ht::Tensor forward(const ht::Tensor& x) { return ht::cast(ht::cast(x, ht::bf16), x.dtype()); }
  std::array<ht::Tensor, 1> backward(const ht::Tensor& dy) const { return {dy}; }
};

void write_an_operation() {
  std::cout << "\n--- an operation of your own\n";
  ht::Tensor x = ht::from({1.001, 2.002, 3.003});
  x.set_requires_grad();
  const ht::Tensor y = ht::apply(RoundToBf16{}, x);
  ht::sum(ht::square(y)).backward();
  std::cout << "forward " << y << ", gradient " << x.grad() << '\n';
}

void trade_time_for_memory() {
  std::cout << "\n--- checkpoint: activations are recomputed, not kept\n";
  ht::Tensor x = ht::rand({256, 1024});
  x.set_requires_grad();
  const auto deep = [](const std::vector<ht::Tensor>& in) {
    ht::Tensor y = in[0];
    for (int layer = 0; layer < 8; ++layer) y = ht::tanh(y + 0.1);
    return y;
  };
  for (const bool recompute : {false, true}) {
    ht::reset_peak_memory();
    const ht::Tensor y = recompute ? ht::checkpoint(deep, {x}) : deep({x});
    const int64_t held = ht::memory_report().now_of(ht::MemoryUse::activation);
    std::cout << (recompute ? "recomputed: " : "kept:       ") << ht::HumanBytes{held}
              << " held between forward and backward\n";
    ht::sum(y).backward();
  }
}

}  // namespace

int main() {
  differentiate();
  check_numerically();
  std::cout << "\n--- fitting sin(x)\n";
  const double loss = fit_sine();
  write_an_operation();
  trade_time_for_memory();
  return after_output(loss < 1e-3 ? 0 : 1);
}

// Conclusion. An operation is recorded if an input requires a gradient; backward() walks the record
// once and adds to the gradients of leaves. Everything that mixed precision does to a training,
// casts and scales included, is an operation in this record.
//
// Exercises
// 1 (pencil). y = x * x + x is computed twice at x = 3. backward() is called for one y and for 2
//   times the other. What is x.grad()?
// 2 (predict). Round x to bf16 inside `function` of the gradcheck. Why does the check fail,
//   although straight-through gradients train?
// 3 (implement). An operation `ClampThrough` that clamps to [-1, 1] and passes the gradient on
//   unchanged; then one whose gradient is 0 outside. Which of them does gradcheck accept?
