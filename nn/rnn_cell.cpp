// A cell runs a sequence of one step.
#include <halftone/nn/rnn_cell.h>

#include <cmath>

#include <halftone/nn/arguments.h>
#include <halftone/nn/init.h>

namespace halftone::nn {

RecurrentCell::RecurrentCell(std::string_view layer, int64_t gates, int64_t in, int64_t hidden_size,
                             RecurrentCellOptions options)
    : hidden(hidden_size) {
  detail::require_positive(layer, "the input size", in);
  detail::require_positive(layer, "the hidden size", hidden);
  const double bound = 1 / std::sqrt(double(hidden));
  const auto uniform = [bound](const Shape& shape) {
    Parameter parameter(shape);
    init::uniform(parameter, -bound, bound);
    return parameter;
  };
  weight_ih = uniform({gates * hidden, in}), weight_hh = uniform({gates * hidden, hidden});
  if (options.bias) bias_ih = uniform({gates * hidden}), bias_hh = uniform({gates * hidden});
}

void RecurrentCell::describe(Fields& field) {
  field("weight_ih", weight_ih), field("weight_hh", weight_hh);
  field("bias_ih", bias_ih), field("bias_hh", bias_hh);
}

Tensor RecurrentCell::projected(std::string_view layer, const Tensor& x) const {
  check::defined(layer, "x", x);
  const int64_t in = weight_ih.size(1);
  if (x.rank() < 1 || x.rank() > 2 || x.size(-1) != in)
    fail<ShapeError>(layer, "needs [n, ", in, "] or [", in, "], got ", described(x),
                     ". Reshape it.");
  return unsqueeze(linear(x.rank() == 1 ? unsqueeze(x, 0) : x, weight_ih, bias_ih), 0);
}

Tensor RecurrentCell::state_for(std::string_view layer, std::string_view what, const Tensor& state,
                                const Tensor& x) const {
  Shape shape = x.shape();
  shape[-1] = hidden;
  if (state.defined() && state.shape() != shape)
    fail<ShapeError>(layer, what, " is ", described(state), " for x ", described(x),
                     ". It must be ", shape, ".");
  const Tensor given = state.defined() ? state : zeros(shape, x.dtype(), x.device());
  return x.rank() == 1 ? unsqueeze(given, 0) : given;
}

LstmCellOutput LstmCell::operator()(const Tensor& x, const Tensor& h, const Tensor& c) const {
  const CallScope scope = call_scope();
  const Tensor gates = projected("LstmCell", x);
  const LstmStates next = lstm(gates, state_for("LstmCell", "h", h, x),
                               state_for("LstmCell", "c", c, x), weight_hh, bias_hh);
  return x.rank() == 1 ? LstmCellOutput{squeeze(next.h, 0), squeeze(next.c, 0)}
                       : LstmCellOutput{next.h, next.c};
}

Tensor GruCell::operator()(const Tensor& x, const Tensor& h) const {
  const CallScope scope = call_scope();
  const Tensor gates = projected("GruCell", x);
  const GruStates next = gru(gates, state_for("GruCell", "h", h, x), weight_hh, bias_hh);
  return x.rank() == 1 ? squeeze(next.h, 0) : next.h;
}

}  // namespace halftone::nn
