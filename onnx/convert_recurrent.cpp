// Recurrent layers. ONNX's LSTM and GRU project their inputs themselves, while halftone's take
// projected inputs. So the linear operation before becomes a part of the node. If there is none,
// the node's projection is a permutation. The gates have another order in ONNX.
#include <halftone/autograd/ops.h>
#include <halftone/onnx/conversions.h>

namespace halftone::onnx {

namespace {
/// Parts of the rows of weights and biases, one per gate.
struct Gates {
  std::vector<int64_t> order;  // halftone's number of ONNX's gate
  int64_t hidden;
  std::vector<int64_t> rows() const {
    std::vector<int64_t> all;
    for (const int64_t gate : order)
      for (int64_t i = 0; i < hidden; ++i) all.push_back(gate * hidden + i);
    return all;
  }
  int64_t count() const { return int64_t(order.size()) * hidden; }
};

Value unsqueezed(const Step& step, const Value& x) {
  return step.node("Unsqueeze", {x, step.graph().integers(std::vector<int64_t>{0})});
}
/// Returns a weight or bias with its rows in ONNX's order, after a new first dimension.
Value in_order(const Step& step, const Value& x, const Gates& gates) {
  const Value rows = step.graph().integers(gates.rows());
  return unsqueezed(step, step.node("Gather", {x, rows}, {attribute("axis", int64_t(0))}));
}

/// The input of the node, and its projection.
struct Projection {
  Value x, weight, bias;
};
Projection projection_of(const Step& step, const Gates& gates, DType dtype) {
  const std::optional<Step> maker = step.maker_of(0);
  const auto zeros_for_bias = [&] {
    return step.graph().constant(zeros({1, gates.count()}, dtype));
  };
  if (maker && &maker->info() == &Linear::info && maker->rank(0) == 3 &&
      maker->input(0).dtype == dtype && maker->output().dtype() == dtype)
    return {maker->input(0), in_order(step, maker->input(1), gates),
            maker->has(2) ? in_order(step, maker->input(2), gates) : zeros_for_bias()};
  const std::vector<int64_t> rows = gates.rows();
  std::vector<float> permutation(std::size_t(gates.count() * gates.count()), 0);
  for (std::size_t i = 0; i < rows.size(); ++i)
    permutation[i * rows.size() + std::size_t(rows[i])] = 1;
  const Tensor weight = from_vector(permutation, {1, gates.count(), gates.count()});
  return {step.cast(step.input(0), dtype),
          step.graph().constant(dtype == f32 ? weight : Cast::converted(weight, dtype)),
          zeros_for_bias()};
}

/// Writes the node and returns its results: the states [time, 1, n, h], then last states.
std::vector<Value> recurrent(const Step& step, std::string_view type, const Gates& gates,
                             bool reverse, std::size_t states, Attributes attributes) {
  const DType dtype = step.output().dtype() == f64 ? f64 : f32;
  const std::size_t weight = states + 1, bias = states + 2;
  const auto wide = [&](std::size_t input) { return step.cast(step.input(input), dtype); };
  const Projection projection = projection_of(step, gates, dtype);
  const Value recurrent_bias = step.has(bias)
                                   ? in_order(step, wide(bias), gates)
                                   : step.graph().constant(zeros({1, gates.count()}, dtype));
  std::vector<Value> inputs{
      projection.x, projection.weight, in_order(step, wide(weight), gates),
      step.node("Concat", {projection.bias, recurrent_bias}, {attribute("axis", int64_t(1))}),
      Value{}};
  for (std::size_t i = 1; i <= states; ++i)
    inputs.push_back(step.is_zero(i) ? Value{} : unsqueezed(step, wide(i)));
  attributes.push_back(attribute("hidden_size", gates.hidden));
  attributes.push_back(attribute("direction", reverse ? "reverse" : "forward"));
  return step.graph().add(type, inputs, dtype, states + 1, std::move(attributes));
}
Value without(const Step& step, const Value& x, int64_t dim) {
  return step.node("Squeeze", {x, step.graph().integers(std::vector<int64_t>{dim})});
}

/// halftone's gates: in, forget, cell, out; ONNX's: in, out, forget, cell.
void lstm(const Step& step) {
  const Gates gates{{0, 3, 1, 2}, step.tensor(3).size(1)};
  const std::vector<Value> y = recurrent(step, "LSTM", gates, step.op<Lstm>().reverse, 2, {});
  // The last cell follows the states, as one more step.
  step.result(step.node("Concat", {without(step, y[0], 1), y[2]}, {attribute("axis", int64_t(0))}));
}
/// halftone's gates: reset, update, new; ONNX's: update, reset, new.
void gru(const Step& step) {
  const Gates gates{{1, 0, 2}, step.tensor(2).size(1)};
  const std::vector<Value> y = recurrent(step, "GRU", gates, step.op<Gru>().reverse, 1,
                                         {attribute("linear_before_reset", int64_t(1))});
  step.result(without(step, y[0], 1));
}
}  // namespace

std::vector<Conversion> recurrent_conversions() {
  return {conversion<Lstm>(lstm), conversion<Gru>(gru)};
}

}  // namespace halftone::onnx
