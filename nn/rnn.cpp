// Recurrent layers: names and first values of the weights, and the loop over layers and
// directions.
#include <halftone/nn/rnn.h>

#include <cmath>
#include <limits>
#include <optional>
#include <string>

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

namespace {
/// Where sequences of unequal length end, and how they are reversed: in tensors for x's device.
struct Padding {
  Tensor valid;     // bool [time, n, 1]: the step is one of the sequence
  Tensor reversed;  // i64 [time * n]: the row at this place of the reversed sequence
  Tensor last;      // i64 [n]: the row of the last valid step

  Padding(std::string_view layer, const Tensor& x, const Tensor& lengths) {
    const int64_t time = x.size(0), n = x.size(1);
    if (lengths.shape() != Shape{n} || is_floating(lengths.dtype()) || lengths.dtype() == boolean)
      fail<ShapeError>(layer, "lengths is ", described(lengths), ". It must be integers ", Shape{n},
                       ".");
    const std::vector<int64_t> ends = lengths.to_vector<int64_t>();
    std::vector<int64_t> rows(std::size_t(time * n)), last;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t end = ends[std::size_t(i)];
      if (end < 1 || end > time)
        fail<UsageError>(layer, "lengths[", i, "] is ", end, ". It must be from 1 to the ", time,
                         " steps of x.");
      for (int64_t t = 0; t < time; ++t)
        rows[std::size_t(t * n + i)] = (t < end ? end - 1 - t : t) * n + i;
      last.push_back((end - 1) * n + i);
    }
    reversed = from_vector(rows, {time * n}, i64).to(x.device());
    this->last = from_vector(last, {n}, i64).to(x.device());
    valid = unsqueeze(unsqueeze(arange(time, i64, x.device()), 1) < lengths.to(x.device()), 2);
  }
  Tensor turned(const Tensor& x) const {
    return reshape(index_select(flatten(x, 0, 1), 0, reversed), x.shape());
  }
  Tensor at_end(const Tensor& y) const { return index_select(flatten(y, 0, 1), 0, last); }
  /// Returns x with one number for each of its equal parts, in place of padding.
  Tensor filled(const Tensor& x, const std::vector<double>& parts) const {
    const int64_t gates = int64_t(parts.size());
    const Tensor row = expand(from_vector(parts, {gates, 1}, x.dtype()).to(x.device()),
                              {gates, x.size(2) / gates});
    return where(valid, x, flatten(row));
  }
};
}  // namespace

template <class Step>
LstmOutput Recurrent::through_layers(std::string_view layer, const Tensor& x, const Tensor& lengths,
                                     const std::vector<double>& at_padding,
                                     const Step& step) const {
  const std::size_t count = options.bidirectional ? 2 : 1;
  std::optional<Padding> padding;
  if (lengths.defined()) padding.emplace(layer, x, lengths);
  Tensor y = padding ? where(padding->valid, x, 0) : x;
  std::vector<Tensor> states, cells;
  for (std::size_t first = 0; first < directions.size(); first += count) {
    if (first > 0) y = dropout(y, options.dropout, training);
    std::vector<Tensor> parts;
    for (std::size_t i = first; i < first + count; ++i) {
      const bool reverse = i > first;
      // Padding moves to the end of a reversed sequence, so that this runs as a forward one.
      const Tensor in = padding && reverse ? padding->turned(y) : y;
      Tensor projected = linear(in, directions[i].weight_ih, directions[i].bias_ih);
      if (padding) projected = padding->filled(projected, at_padding);
      LstmOutput result = step(i, projected, reverse && !padding);
      if (padding) {
        result.h = padding->at_end(result.y);
        result.y = where(padding->valid, result.y, 0);
        if (reverse) result.y = padding->turned(result.y);
      }
      states.push_back(result.h), cells.push_back(result.c), parts.push_back(result.y);
    }
    y = count == 1 ? parts[0] : cat(parts, 2);
  }
  return {options.batch_first ? transpose(y, 0, 1) : y, stack(states),
          cells[0].defined() ? stack(cells) : Tensor{}};
}

constexpr double infinite = std::numeric_limits<double>::infinity();

LstmOutput Lstm::forward(const Tensor& x_in, const Tensor& h0, const Tensor& c0,
                         const Tensor& lengths) const {
  const Tensor x = by_time("Lstm", x_in);
  const auto step = [&](std::size_t i, const Tensor& projected, bool reverse) -> LstmOutput {
    const LstmStates result =
        lstm(projected, first_state("Lstm", "h0", h0, x, i), first_state("Lstm", "c0", c0, x, i),
             directions[i].weight_hh, directions[i].bias_hh, reverse);
    return {result.y, result.h, result.c};
  };
  // An input gate of 0 and a forget gate of 1: padding keeps the cell.
  return through_layers("Lstm", x, lengths, {-infinite, infinite, 0, 0}, step);
}

GruOutput Gru::forward(const Tensor& x_in, const Tensor& h0, const Tensor& lengths) const {
  const Tensor x = by_time("Gru", x_in);
  const auto step = [&](std::size_t i, const Tensor& projected, bool reverse) -> LstmOutput {
    const GruStates result = gru(projected, first_state("Gru", "h0", h0, x, i),
                                 directions[i].weight_hh, directions[i].bias_hh, reverse);
    return {result.y, result.h};
  };
  const LstmOutput result = through_layers("Gru", x, lengths, {0, 0, 0}, step);
  return {result.y, result.h};
}

Rnn::Rnn(int64_t in, int64_t hidden_size, RecurrentOptions o, std::string_view nonlinearity)
    : LayerOf("Rnn", 1, in, hidden_size, o), uses_relu(nonlinearity == "relu") {
  if (!uses_relu && nonlinearity != "tanh")
    fail<UsageError>("Rnn", "nonlinearity is \"", nonlinearity, "\". Use \"tanh\" or \"relu\".");
}

namespace {
/// Appends the steps of x. It halves x, so that backward adds gradients of few sizes: cut from the
/// whole, each step's gradient would be as large as x.
void add_steps(const Tensor& x, std::vector<Tensor>& to) {
  const int64_t count = x.size(0);
  if (count == 1) return to.push_back(select(x, 0, 0));
  add_steps(slice(x, 0, 0, count / 2), to), add_steps(slice(x, 0, count / 2, count), to);
}
}  // namespace

RnnOutput Rnn::forward(const Tensor& x_in, const Tensor& h0, const Tensor& lengths) const {
  const Tensor x = by_time("Rnn", x_in);
  if (x.size(0) < 1) fail<ShapeError>("Rnn", "x is ", described(x), ". It must have steps.");
  const auto step = [&](std::size_t i, const Tensor& projected, bool reverse) -> LstmOutput {
    std::vector<Tensor> steps;
    add_steps(projected, steps);
    Tensor h = first_state("Rnn", "h0", h0, x, i);
    for (std::size_t k = 0; k < steps.size(); ++k) {
      Tensor& at = steps[reverse ? steps.size() - 1 - k : k];
      const Tensor sum = at + linear(h, directions[i].weight_hh, directions[i].bias_hh);
      at = h = uses_relu ? relu(sum) : halftone::tanh(sum);
    }
    return {stack(steps), h};
  };
  // After the end of a sequence relu stays 0, and does not grow.
  const LstmOutput result = through_layers("Rnn", x, lengths, {-infinite}, step);
  return {result.y, result.h};
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

LstmCellOutput LstmCell::forward(const Tensor& x, const Tensor& h, const Tensor& c) const {
  const Tensor gates = projected("LstmCell", x);
  const LstmStates next = lstm(gates, state_for("LstmCell", "h", h, x),
                               state_for("LstmCell", "c", c, x), weight_hh, bias_hh);
  return x.rank() == 1 ? LstmCellOutput{squeeze(next.h, 0), squeeze(next.c, 0)}
                       : LstmCellOutput{next.h, next.c};
}

Tensor GruCell::forward(const Tensor& x, const Tensor& h) const {
  const Tensor gates = projected("GruCell", x);
  const GruStates next = gru(gates, state_for("GruCell", "h", h, x), weight_hh, bias_hh);
  return x.rank() == 1 ? squeeze(next.h, 0) : next.h;
}

}  // namespace halftone::nn
