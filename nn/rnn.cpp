// Recurrent layers: names and first values of the weights, and the loop over layers and
// directions.
#include <halftone/nn/rnn.h>

#include <cmath>

#include <halftone/nn/layers.h>

namespace halftone::nn {

Recurrent::Recurrent(std::string_view layer, int64_t gates, int64_t in, int64_t hidden_size,
                     RecurrentOptions o)
    : hidden(hidden_size), options(o) {
  detail::require_positive(layer, "the input size", in);
  detail::require_positive(layer, "the hidden size", hidden);
  detail::require_positive(layer, "layers", o.layers);
  if (!(o.dropout >= 0 && o.dropout <= 1))
    fail<UsageError>(layer, "dropout ", o.dropout, " is not between 0 and 1. Choose one that is.");
  const double bound = 1 / std::sqrt(double(hidden));
  const auto uniform = [bound](const Shape& shape) {
    Parameter parameter(shape);
    init::uniform(parameter, -bound, bound);
    return parameter;
  };
  const int64_t count = o.bidirectional ? 2 : 1, rows = gates * hidden;
  for (int64_t i = 0; i < o.layers * count; ++i) {
    const int64_t width = i < count ? in : count * hidden;
    Direction d{.weight_ih = uniform({rows, width}), .weight_hh = uniform({rows, hidden})};
    if (o.bias) d.bias_ih = uniform({rows}), d.bias_hh = uniform({rows});
    directions.push_back(std::move(d));
  }
}

void Recurrent::describe(Fields& field) {
  const std::size_t count = options.bidirectional ? 2 : 1;
  for (std::size_t i = 0; i < directions.size(); ++i) {
    const std::string suffix =
        "_l" + std::to_string(i / count) + (i % count == 1 ? "_reverse" : "");
    Direction& d = directions[i];
    field("weight_ih" + suffix, d.weight_ih), field("weight_hh" + suffix, d.weight_hh);
    field("bias_ih" + suffix, d.bias_ih), field("bias_hh" + suffix, d.bias_hh);
  }
}

Tensor Recurrent::by_time(std::string_view layer, const Tensor& x) const {
  const int64_t in = directions[0].weight_ih.size(1);
  check::defined(layer, "x", x);
  if (x.rank() != 3 || x.size(2) != in)
    fail<ShapeError>(layer, "needs [", options.batch_first ? "n, time" : "time, n", ", ", in,
                     "], got ", described(x), ". Reshape it, or see batch_first.");
  return options.batch_first ? transpose(x, 0, 1) : x;
}

Tensor Recurrent::first_state(std::string_view layer, std::string_view what, const Tensor& state,
                              const Tensor& x, std::size_t index) const {
  const int64_t count = int64_t(directions.size()), n = x.size(1);
  if (!state.defined()) return zeros({n, hidden}, x.dtype(), x.device());
  if (state.shape() != Shape{count, n, hidden})
    fail<ShapeError>(layer, what, " is ", described(state), ". It must be ",
                     Shape{count, n, hidden}, ".");
  return select(state, 0, int64_t(index));
}

template <class Step> Tensor Recurrent::through_layers(const Tensor& x, const Step& step) const {
  const std::size_t count = options.bidirectional ? 2 : 1;
  Tensor y = x;
  for (std::size_t first = 0; first < directions.size(); first += count) {
    if (first > 0) y = dropout(y, options.dropout, training);
    std::vector<Tensor> parts;
    for (std::size_t i = first; i < first + count; ++i)
      parts.push_back(
          step(i, linear(y, directions[i].weight_ih, directions[i].bias_ih), i > first));
    y = count == 1 ? parts[0] : cat(parts, 2);
  }
  return options.batch_first ? transpose(y, 0, 1) : y;
}

LstmOutput Lstm::operator()(const Tensor& x_in, const Tensor& h0, const Tensor& c0) const {
  const CallScope scope = call_scope();
  const Tensor x = by_time("Lstm", x_in);
  std::vector<Tensor> states, cells;
  const Tensor y = through_layers(x, [&](std::size_t i, const Tensor& projected, bool reverse) {
    const LstmStates result =
        lstm(projected, first_state("Lstm", "h0", h0, x, i), first_state("Lstm", "c0", c0, x, i),
             directions[i].weight_hh, directions[i].bias_hh, reverse);
    states.push_back(result.h), cells.push_back(result.c);
    return result.y;
  });
  return {y, stack(states), stack(cells)};
}

GruOutput Gru::operator()(const Tensor& x_in, const Tensor& h0) const {
  const CallScope scope = call_scope();
  const Tensor x = by_time("Gru", x_in);
  std::vector<Tensor> states;
  const Tensor y = through_layers(x, [&](std::size_t i, const Tensor& projected, bool reverse) {
    const GruStates result = gru(projected, first_state("Gru", "h0", h0, x, i),
                                 directions[i].weight_hh, directions[i].bias_hh, reverse);
    states.push_back(result.h);
    return result.y;
  });
  return {y, stack(states)};
}

// A cell runs a sequence of one step.

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
