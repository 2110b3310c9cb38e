// One step of a recurrent layer, for loops over time of your own: decoders that feed back their
// output, attention between steps. As torch.nn.LSTMCell and GRUCell, with their parameters:
// weight_ih, weight_hh, bias_ih, bias_hh. A layer over whole sequences (rnn.h) is much faster.
#pragma once

#include <halftone/autograd/ops.h>
#include <halftone/nn/module.h>

namespace halftone::nn {

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
