// Lesson 27: your own operation with all features. You will write the gate of SwiGLU (Shazeer 2020)
// as one operation, check its gradient, see what it saves compared with the same formula built from
// parts, see autocast cast for it, and let a policy change that.
#include <cmath>
#include <iostream>

#include <halftone/halftone.h>

#include "output.h"

namespace ht = halftone;
using ht::amp::CastClass;

namespace {

/// y = silu(gate) * value. It keeps its two inputs; the composed form also keeps silu(gate).
struct SwishGate : ht::UserOp {
  // The name for logs and errors, and its wish under mixed precision: inputs of one dtype.
  static constexpr ht::OpInfo info{"swish_gate", CastClass::widest_input};
  ht::Tensor gate{}, value{};
  ht::Needs<2> needs{};  // set by apply(): which gradients are needed

  // Operations inside are neither recorded nor cast: this is plain arithmetic.
  ht::Tensor forward(const ht::Tensor& gate_in, const ht::Tensor& value_in) {
    ht::check::same_dtype(info.name, gate_in, value_in);
    if (gate_in.shape() != value_in.shape())
      ht::fail<ht::ShapeError>(info.name, "shapes differ: ", ht::described(gate_in), " and ",
                               ht::described(value_in), ". Make them equal.");
    gate = gate_in, value = value_in;
    return ht::silu(gate) * value;
  }
  // With s = sigmoid(gate): d silu = s (1 + gate (1 - s)).
  std::array<ht::Tensor, 2> backward(const ht::Tensor& dy) const {
    const ht::Tensor s = ht::sigmoid(gate);
    ht::Tensor dgate, dvalue;
    if (needs[0]) dgate = dy * value * s * (1.0 + gate * (1.0 - s));
    if (needs[1]) dvalue = dy * gate * s;
    return {dgate, dvalue};
  }
};

ht::Tensor swish_gate(const ht::Tensor& gate, const ht::Tensor& value) {
  return ht::apply(SwishGate{}, gate, value);
}

/// The feed-forward layer of current language models: down(silu(gate(x)) * up(x)).
struct SwiGlu final : ht::nn::Layer {
  ht::nn::Linear gate, up, down;
  bool fused = true;
  explicit SwiGlu(int64_t width, int64_t hidden)
      : gate(width, hidden), up(width, hidden), down(hidden, width) {}
  ht::Tensor forward(const ht::Tensor& x) const override {
    if (fused) return down(swish_gate(gate(x), up(x)));
    return down(ht::silu(gate(x)) * up(x));
  }
  void describe(ht::nn::Fields& field) override {
    field("gate", gate), field("up", up), field("down", down);
  }
};

void title(const char* text) { std::cout << "\n--- " << text << "\n\n"; }

bool check_gradient() {
  title("gradcheck, in f64");
  ht::Tensor gate = ht::randn({3, 5}, ht::f64), value = ht::randn({3, 5}, ht::f64);
  gate.set_requires_grad(), value.set_requires_grad();
  const ht::GradcheckResult result = ht::gradcheck(
      [](const std::vector<ht::Tensor>& in) { return swish_gate(in[0], in[1]); }, {gate, value});
  std::cout << "swish_gate: " << (result ? "passed" : result.message) << '\n';
  return bool(result);
}

void compare_memory(SwiGlu& layer, const ht::Tensor& x) {
  title("bytes held between forward and backward");
  for (const bool fused : {false, true}) {
    layer.fused = fused;
    const ht::Tensor y = layer(x);
    const int64_t held = ht::memory_report().now_of(ht::MemoryUse::activation);
    std::cout << (fused ? "one operation: " : "of parts:      ") << ht::HumanBytes{held} << '\n';
    ht::sum(y).backward();
  }
}

/// Returns the largest difference from the f32 result, relative to the largest value.
double error_of(const ht::Tensor& y, const ht::Tensor& exact) {
  const ht::Tensor difference = ht::abs(ht::cast(y, ht::f32) - exact);
  return ht::max(difference).item() / ht::max(ht::abs(exact)).item();
}

void decide(const SwiGlu& layer, const ht::Tensor& x) {
  const ht::NoGrad no_grad;
  const ht::Tensor exact = layer(x);
  const auto run = [&](const char* text, const ht::amp::CastPolicy& policy) {
    title(text);
    ht::amp::PrecisionLog log;
    const ht::Tensor y = ht::amp::autocast(policy.with(ht::bf16), [&] { return layer(x); });
    std::cout << log << "error " << error_of(y, exact) << '\n';
  };
  run("under autocast: both inputs are bf16 and it asks for the widest, so it runs in bf16", {});
  ht::amp::CastPolicy policy;
  policy[SwishGate::info] = CastClass::full_precision;
  run("a policy that asks for f32: its inputs are cast", policy);
  policy[SwishGate::info] = CastClass::banned;
  try {
    run("a policy that bans it", policy);
  } catch (const ht::UsageError& error) { std::cout << error.what() << '\n'; }
}

void make_mistakes() {
  title("errors contain its name");
  const ht::Tensor x = ht::ones({2, 3});
  try {
    swish_gate(x, ht::ones({3}));
  } catch (const ht::ShapeError& error) { std::cout << error.what() << '\n'; }
  try {
    swish_gate(x, ht::ones({2, 3}, ht::bf16));
  } catch (const ht::DTypeError& error) { std::cout << error.what() << '\n'; }
}

}  // namespace

int main() {
  ht::manual_seed(0);
  const bool correct = check_gradient();
  SwiGlu layer(64, 256);
  const ht::Tensor x = ht::randn({512, 64});
  compare_memory(layer, x);
  decide(layer, x);
  make_mistakes();
  return after_output(correct ? 0 : 1);
}

// Conclusion. An operation is a struct with a name, a cast class, forward and backward. With these
// it is checked, recorded, cast, logged and decided on like those of the library.
//
// Exercises
// 1 (pencil). Derive the gradients of silu(a) b by a and by b.
// 2 (implement). An operation of one input, hard_swish, x clamp(x + 3, 0, 6) / 6, that saves only
//   x.
// 3 (design). Your operation divides by a sum of squares. Which cast class do you give it, and why?
