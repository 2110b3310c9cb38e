// Recurrent layers: names and first values of the weights, and the loop over layers and
// directions.
#include <halftone/nn/rnn.h>

#include <cmath>

#include <halftone/nn/arguments.h>
#include <halftone/nn/init.h>

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

}  // namespace halftone::nn
