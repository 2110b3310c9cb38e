// Recurrent layers with PyTorch's parameters: weight_ih_l0 [gates hidden, in], weight_hh_l0,
// bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ..., all initialized uniform on +-1/sqrt(hidden).
// One matrix product projects the inputs of all steps; one operation runs the steps over time
// (autograd/ops/sequences.h). Under autocast both run in low precision, as PyTorch's
// cells.
#pragma once

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

/// The common part of Lstm and Gru: the weights of every layer and direction.
struct Recurrent : Module {
  /// weight_ih: [gates * hidden, in], bias_ih: [gates * hidden]; weight_hh and bias_hh likewise.
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
  /// Checks x and returns it as [time, n, in].
  Tensor by_time(std::string_view layer, const Tensor& x) const;
  /// Returns the slice [n, hidden] of a state [layers * directions, n, hidden]; zeros if it is
  /// undefined.
  Tensor first_state(std::string_view layer, std::string_view what, const Tensor& state,
                     const Tensor& x, std::size_t index) const;
  /// Runs step(index of the direction, projected inputs, reverse), which returns [time, n, hidden],
  /// for all layers; the result: [time, n, directions * hidden], or batch first.
  template <class Step> Tensor through_layers(const Tensor& x, const Step& step) const;
};

/// y: [time, n, directions * hidden] of the last layer, or batch first; h, c: [layers * directions,
/// n, hidden], after the last step of each.
struct LstmOutput {
  Tensor y, h, c;
};
/// As torch.nn.LSTM (without proj_size).
struct Lstm final : Recurrent {
  Lstm(int64_t in, int64_t hidden_size, RecurrentOptions o = {})
      : Recurrent("Lstm", 4, in, hidden_size, o) {}
  /// x: [time, n, in], or batch first; h0, c0: [layers * directions, n, hidden], zeros if absent.
  /// Throws ShapeError if they do not fit.
  LstmOutput operator()(const Tensor& x, const Tensor& h0 = {}, const Tensor& c0 = {}) const;
};

struct GruOutput {
  Tensor y, h;  // as LstmOutput's
};
/// As torch.nn.GRU.
struct Gru final : Recurrent {
  Gru(int64_t in, int64_t hidden_size, RecurrentOptions o = {})
      : Recurrent("Gru", 3, in, hidden_size, o) {}
  /// As Lstm's, without cells.
  GruOutput operator()(const Tensor& x, const Tensor& h0 = {}) const;
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
  /// Returns x's contribution to the gates, as one step of a sequence: [1, n, gates * hidden].
  Tensor projected(std::string_view layer, const Tensor& x) const;
  /// Returns a state [n, hidden], or zeros like x if it is undefined.
  Tensor state_for(std::string_view layer, std::string_view what, const Tensor& state,
                   const Tensor& x) const;
};

struct LstmCellOutput {
  Tensor h, c;  // shaped as x, with `hidden` numbers
};
struct LstmCell final : RecurrentCell {
  LstmCell(int64_t in, int64_t hidden_size, RecurrentCellOptions options = {})
      : RecurrentCell("LstmCell", 4, in, hidden_size, options) {}
  /// x: [n, in] or [in]; h, c: [n, hidden] or [hidden], zeros if absent. Throws ShapeError if they
  /// do not fit.
  LstmCellOutput operator()(const Tensor& x, const Tensor& h = {}, const Tensor& c = {}) const;
};

struct GruCell final : RecurrentCell {
  GruCell(int64_t in, int64_t hidden_size, RecurrentCellOptions options = {})
      : RecurrentCell("GruCell", 3, in, hidden_size, options) {}
  /// As LstmCell's; returns the new state.
  Tensor operator()(const Tensor& x, const Tensor& h = {}) const;
};

}  // namespace halftone::nn
