// Recurrent layers under create_graph, step by step. They saved the activated gates, but not their
// inputs, nor the sums before the activations. A node replaces each activation, with known values.
#include <halftone/autograd/history.h>
#include <halftone/autograd/ops/sequences.h>

namespace halftone {

namespace {

enum class Activation : uint8_t { none, sigmoid, tanh };

/// Returns the known values of an activation of x; its gradient reads them alone.
struct Known : UserOp {
  static constexpr OpInfo info{"recurrent_gate", CastClass::as_is};
  Tensor value;
  Activation activation;

  Tensor forward(const Tensor&) { return value; }
  Tensor gradient(const Tensor& dy, const Tensor& y) const {
    if (activation == Activation::none) return dy;
    return activation == Activation::tanh ? dy * (1.0 - y * y) : dy * y * (1.0 - y);
  }
  std::array<Tensor, 1> backward(const Tensor& dy) const { return {gradient(dy, value)}; }
  Gradients recorded_backward(const Tensor& dy, const History& history) const {
    return {gradient(dy, history.output(value))};
  }
};

/// One step: the gates' sums of a layer, and what the operation saved of them.
class Gates {
 public:
  Gates(const Tensor& saved, int64_t width)
      : saved_(cast(saved, statistics_dtype(saved))), width_(width) {}
  /// Returns gate `i` of the saved ones, from its sum.
  Tensor operator()(const Tensor& sum, int i, Activation activation) const {
    return apply(Known{{}, contiguous(part(saved_, i)), activation}, sum);
  }
  Tensor part(const Tensor& x, int i) const { return slice(x, 1, i * width_, (i + 1) * width_); }

 private:
  Tensor saved_;
  int64_t width_;
};

Tensor widened(const Tensor& x, DType wide) { return x.defined() ? cast(x, wide) : x; }

/// Returns the states of all steps in the order of time, from step(t, state before).
template <class Step>
std::vector<Tensor> states_of(int64_t count, bool reverse, Tensor state, const Step& step) {
  std::vector<Tensor> states(std::size_t(count), Tensor{});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t t = reverse ? count - 1 - i : i;
    states[std::size_t(t)] = state = step(t, state);
  }
  return states;
}

}  // namespace

Gradients Lstm::recorded_backward(const Tensor& dy, const History& history) const {
  const Device device = y.device();
  const std::vector<Tensor> inputs{history.stand_in(0, device), h0, c0, weight,
                                   history.stand_in(4, device)};
  return history.through(dy, inputs, [this](const std::vector<Tensor>& in) {
    using enum Activation;
    const DType wide = cells.dtype();
    const Tensor x = widened(in[0], wide), w = widened(in[3], wide), bias = widened(in[4], wide);
    Tensor cell = widened(in[2], wide);
    const auto step = [&](int64_t t, const Tensor& state) {
      const Tensor recurrent = linear(state, w, bias);
      const Tensor sums = x.defined() ? select(x, 0, t) + recurrent : recurrent;
      const Gates gate(select(gates, 0, t), weight.size(1));
      const auto of = [&](int i, Activation a) { return gate(gate.part(sums, i), i, a); };
      cell = of(1, sigmoid) * cell + of(0, sigmoid) * of(2, tanh);
      return of(3, sigmoid) * halftone::tanh(cell);
    };
    std::vector<Tensor> states = states_of(gates.size(0), reverse, widened(in[1], wide), step);
    states.push_back(cell);
    return stack(states);
  });
}

Gradients Gru::recorded_backward(const Tensor& dy, const History& history) const {
  const Device device = y.device();
  const std::vector<Tensor> inputs{history.stand_in(0, device), h0, weight,
                                   history.stand_in(3, device)};
  return history.through(dy, inputs, [this](const std::vector<Tensor>& in) {
    using enum Activation;
    const DType wide = statistics_dtype(y);
    const Tensor x = widened(in[0], wide), w = widened(in[2], wide), bias = widened(in[3], wide);
    const auto step = [&](int64_t t, const Tensor& state) {
      const Tensor recurrent = linear(state, w, bias);
      const Gates gate(select(gates, 0, t), weight.size(1));
      const auto with_given = [&](const Tensor& sum, int i) {
        return x.defined() ? gate.part(select(x, 0, t), i) + sum : sum;
      };
      const auto sum = [&](int i) { return with_given(gate.part(recurrent, i), i); };
      const Tensor reset = gate(sum(0), 0, sigmoid), update = gate(sum(1), 1, sigmoid);
      const Tensor share = gate(gate.part(recurrent, 2), 3, none);
      const Tensor made = gate(with_given(reset * share, 2), 2, tanh);
      return (1.0 - update) * made + update * state;
    };
    return stack(states_of(gates.size(0), reverse, widened(in[1], wide), step));
  });
}

}  // namespace halftone
