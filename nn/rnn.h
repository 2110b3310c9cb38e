// Recurrent layers with PyTorch's parameters: weight_ih_l0 [gates * hidden, in], weight_hh_l0,
// bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ..., all initialized uniform on +-1/sqrt(hidden).
// One matrix product projects the inputs of all steps; one operation runs the steps over time
// (autograd/ops/sequences.h), for Rnn a few operations per step. Under autocast both run in low
// precision, as PyTorch's cells.
//
// Sequences of unequal length: `lengths`, integers [n] from 1 to time, the valid steps of each. The
// results are those of torch.nn.utils.rnn.pack_padded_sequence and pad_packed_sequence with
// total_length = time: outputs after the last valid step are 0, h and c are those of the last valid
// step, and reverse directions begin there. The rest of x is not read. The host reads the lengths.
#pragma once

#include <string_view>
#include <vector>

#include <halftone/autograd/ops.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

struct RecurrentOptions {
  int64_t layers = 1;
  bool bias = true;
  bool batch_first = false;    // x and output are [n, time, ...] instead of [time, n, ...]
  bool bidirectional = false;  // a second set of weights reads from the end; outputs are joined
  double dropout = 0;          // on each layer's output but the last one's, in training
};

/// y: the last layer's outputs, [time, n, directions * hidden], or [n, time, ...] with batch_first.
/// h, c: each layer's and direction's state after its last step, [layers * directions, n, hidden].
struct LstmOutput {
  Tensor y, h, c{};
  std::vector<Tensor> tensors() const { return {y, h, c}; }
};
struct GruOutput {
  Tensor y, h;  // as LstmOutput's
  std::vector<Tensor> tensors() const { return {y, h}; }
};
using RnnOutput = GruOutput;

/// The common part of Rnn, Lstm and Gru: the weights of every layer and direction.
struct Recurrent : Module {
  /// weight_ih: [gates * hidden, in], weight_hh: [gates * hidden, hidden], bias: [gates * hidden].
  struct Direction {
    Parameter weight_ih, weight_hh, bias_ih{}, bias_hh{};
  };
  int64_t hidden;
  RecurrentOptions options;
  std::vector<Direction> directions;  // layer by layer, forwards before backwards

  void describe(Fields& field) override;

 protected:
  Recurrent(std::string_view layer, int64_t gates, int64_t in, int64_t hidden,
            RecurrentOptions options);
  /// Returns x as [time, n, in]. Throws ShapeError for another rank or width.
  Tensor by_time(std::string_view layer, const Tensor& x) const;
  /// Returns slice `index`, [n, hidden], of a state [layers * directions, n, hidden]; zeros if
  /// `state` is undefined. Throws ShapeError; `what` names the state in the message.
  Tensor first_state(std::string_view layer, std::string_view what, const Tensor& state,
                     const Tensor& x, std::size_t index) const;
  /// Runs step(index of the direction, projected inputs, reverse) for all layers and directions;
  /// `step` returns a direction's outputs and last states [n, hidden]. x: [time, n, in].
  /// `at_padding`: per gate, the number that replaces projected inputs after a sequence's end.
  template <class Step>
  LstmOutput through_layers(std::string_view layer, const Tensor& x, const Tensor& lengths,
                            const std::vector<double>& at_padding, const Step& step) const;
};

/// As torch.nn.LSTM (without proj_size).
struct Lstm final : LayerOf<LstmOutput(const Tensor& x, const Tensor& h0, const Tensor& c0,
                                       const Tensor& lengths),
                            Recurrent> {
  Lstm(int64_t in, int64_t hidden_size, RecurrentOptions o = {})
      : LayerOf("Lstm", 4, in, hidden_size, o) {}
  /// x: [time, n, in], or [n, time, in] with batch_first; h0, c0: [layers * directions, n, hidden],
  /// zeros if absent. Throws ShapeError for other shapes, UsageError for lengths out of range.
  LstmOutput operator()(const Tensor& x, const Tensor& h0 = {}, const Tensor& c0 = {},
                        const Tensor& lengths = {}) const {
    return LayerOf::operator()(x, h0, c0, lengths);
  }
  LstmOutput forward(const Tensor& x, const Tensor& h0, const Tensor& c0,
                     const Tensor& lengths) const override;
};

/// As torch.nn.GRU.
struct Gru final
    : LayerOf<GruOutput(const Tensor& x, const Tensor& h0, const Tensor& lengths), Recurrent> {
  Gru(int64_t in, int64_t hidden_size, RecurrentOptions o = {})
      : LayerOf("Gru", 3, in, hidden_size, o) {}
  /// Takes the arguments of Lstm's operator(), without c0.
  GruOutput operator()(const Tensor& x, const Tensor& h0 = {}, const Tensor& lengths = {}) const {
    return LayerOf::operator()(x, h0, lengths);
  }
  GruOutput forward(const Tensor& x, const Tensor& h0, const Tensor& lengths) const override;
};

/// Computes h = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of that sum. As torch.nn.RNN.
struct Rnn final
    : LayerOf<RnnOutput(const Tensor& x, const Tensor& h0, const Tensor& lengths), Recurrent> {
  bool uses_relu;
  /// nonlinearity: "tanh" or "relu"; throws UsageError for other names.
  Rnn(int64_t in, int64_t hidden_size, RecurrentOptions o = {},
      std::string_view nonlinearity = "tanh");
  /// Takes the arguments of Gru's operator().
  RnnOutput operator()(const Tensor& x, const Tensor& h0 = {}, const Tensor& lengths = {}) const {
    return LayerOf::operator()(x, h0, lengths);
  }
  RnnOutput forward(const Tensor& x, const Tensor& h0, const Tensor& lengths) const override;
};

// One step of a recurrent layer, for loops over time of your own: decoders that feed back their
// output, attention between steps. As torch.nn.LSTMCell and GRUCell, with their parameters:
// weight_ih, weight_hh, bias_ih, bias_hh. A layer over whole sequences (Lstm, Gru) is much faster.

struct RecurrentCellOptions {
  bool bias = true;
};

/// The common part of both cells.
struct RecurrentCell : Module {
  /// weight_ih: [gates * hidden, in], weight_hh: [gates * hidden, hidden]; biases: [gates *
  /// hidden].
  Parameter weight_ih, weight_hh, bias_ih, bias_hh;
  int64_t hidden;

  void describe(Fields& field) override;

 protected:
  RecurrentCell(std::string_view layer, int64_t gates, int64_t in, int64_t hidden_size,
                RecurrentCellOptions options);
  /// Returns W_ih x + b_ih, as one step of a sequence: [1, n, gates * hidden]. Throws ShapeError.
  Tensor projected(std::string_view layer, const Tensor& x) const;
  /// Returns `state` as [n, hidden]; zeros of x's dtype if it is undefined. Throws ShapeError.
  Tensor state_for(std::string_view layer, std::string_view what, const Tensor& state,
                   const Tensor& x) const;
};

struct LstmCellOutput {
  Tensor h, c;  // shaped as x, with `hidden` numbers
  std::vector<Tensor> tensors() const { return {h, c}; }
};
struct LstmCell final
    : LayerOf<LstmCellOutput(const Tensor& x, const Tensor& h, const Tensor& c), RecurrentCell> {
  LstmCell(int64_t in, int64_t hidden_size, RecurrentCellOptions options = {})
      : LayerOf("LstmCell", 4, in, hidden_size, options) {}
  /// x: [n, in] or [in]; h, c: [n, hidden] or [hidden], zeros if absent. Throws ShapeError for
  /// other shapes.
  LstmCellOutput operator()(const Tensor& x, const Tensor& h = {}, const Tensor& c = {}) const {
    return LayerOf::operator()(x, h, c);
  }
  LstmCellOutput forward(const Tensor& x, const Tensor& h, const Tensor& c) const override;
};

struct GruCell final : LayerOf<Tensor(const Tensor& x, const Tensor& h), RecurrentCell> {
  GruCell(int64_t in, int64_t hidden_size, RecurrentCellOptions options = {})
      : LayerOf("GruCell", 3, in, hidden_size, options) {}
  /// Takes the arguments of LstmCell's operator(), without c. Returns the new state h.
  Tensor operator()(const Tensor& x, const Tensor& h = {}) const {
    return LayerOf::operator()(x, h);
  }
  Tensor forward(const Tensor& x, const Tensor& h) const override;
};

}  // namespace halftone::nn
