// Products, attention, images, recurrent layers, quantizers.
#include <cmath>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/onnx/conversions.h>

namespace halftone::onnx {

// Matrix products and attention. Products stay in the dtype of their inputs; the softmax inside
// attention is f32, as halftone's kernels compute it.

namespace {
void linear(const Step& step) {
  const Value x = step.runnable_input(0), weight = step.runnable_input(1);
  const Value bias = step.has(2) ? step.runnable_input(2) : Value{};
  if (step.rank(0) == 2)
    return step.result(step.node("Gemm", {x, weight, bias}, {attribute("transB", int64_t(1))}));
  const Value y = step.node("MatMul", {x, step.transpose(weight, {1, 0})});
  step.result(bias.defined() ? step.node("Add", {y, bias}) : y);
}
void matmul(const Step& step) {
  step.result(step.node("MatMul", {step.runnable_input(0), step.runnable_input(1)}));
}
void dot(const Step& step) {
  step.result(step.node("MatMul", {step.wide_input(0), step.wide_input(1)}));
}

/// Queries, keys and values, [n, heads, l, e], in the dtype of the products.
struct Heads {
  Value q, k, v;
  int64_t queries, keys;  // their numbers
};

Value causal_mask(const Step& step, int64_t queries, int64_t keys, DType dtype) {
  std::vector<float> values(std::size_t(queries * keys), 0);
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = i + 1; j < keys; ++j)
      values[std::size_t(i * keys + j)] = -std::numeric_limits<float>::infinity();
  const Tensor mask = from_vector(values, {queries, keys});
  return step.graph().constant(dtype == f32 ? mask : converted(mask, dtype));
}

/// Returns softmax(scale q k^T + mask) v.
Value attended(const Step& step, const Heads& heads, const AttentionSettings& settings,
               std::size_t mask_input) {
  if (settings.dropout > 0) step.refuse("with dropout");
  const DType wide = heads.q.dtype == f64 ? f64 : f32;
  Value scores = step.node("MatMul", {heads.q, step.transpose(heads.k, {0, 1, 3, 2})});
  scores = step.node("Mul", {step.cast(scores, wide), step.number(settings.scale, wide)});
  if (settings.causal)
    scores = step.node("Add", {scores, causal_mask(step, heads.queries, heads.keys, wide)});
  if (step.has(mask_input)) {
    const Value mask = step.input(mask_input);
    scores =
        mask.dtype == boolean
            ? step.graph().add(
                  "Where",
                  {mask, scores, step.number(-std::numeric_limits<double>::infinity(), wide)}, wide)
            : step.node("Add", {scores, step.cast(mask, wide)});
  }
  Value weights = step.node("Softmax", {scores}, {attribute("axis", int64_t(-1))});
  if (step.has(mask_input)) {  // a query that sees no key gets 0, where a softmax has NaN
    const Value largest =
        step.node("ReduceMax", {scores, step.graph().integers(std::vector<int64_t>{-1})},
                  {attribute("keepdims", int64_t(1))});
    const Value sees_none = step.graph().add(
        "Equal", {largest, step.number(-std::numeric_limits<double>::infinity(), wide)}, boolean);
    weights = step.graph().add("Where", {sees_none, step.number(0, wide), weights}, wide);
  }
  return step.node("MatMul", {step.cast(weights, heads.v.dtype), heads.v});
}

/// Repeats each head of keys or values for the queries that share it.
Value repeated(const Step& step, std::size_t input, int64_t heads) {
  const Value x = step.runnable_input(input);
  const int64_t own = step.tensor(input).size(1);
  if (own == heads) return x;
  Sizes sizes = step.input_sizes(input), spread = sizes;
  spread.insert(spread.begin() + 2, Size(1));
  const Value apart = step.reshape(x, spread);
  const Value copies = step.node(
      "Expand", {apart, step.graph().integers(std::vector<int64_t>{1, 1, heads / own, 1, 1})});
  sizes[1] = heads;
  return step.reshape(copies, sizes);
}

/// y = x cos + (x with the elements of each pair exchanged) sin, with the signs in the sines.
void rope(const Step& step) {
  const Rope& op = step.op<Rope>();
  const Tensor& like = step.tensor(0);
  const int64_t l = like.size(-2), e = like.size(-1), pairs = e / 2;
  const auto first_of = [&](int64_t pair) { return op.options.interleaved ? 2 * pair : pair; };
  const auto second_of = [&](int64_t pair) {
    return op.options.interleaved ? 2 * pair + 1 : pair + pairs;
  };
  // The operation itself turns pairs of 1 and 0 into their cosines and sines.
  const Value x = step.wide_input(0);
  std::vector<double> ones(std::size_t(l * e), 0), cosines(ones), sines(ones);
  std::vector<int64_t> exchanged(std::size_t(e), 0);
  for (int64_t i = 0; i < l; ++i)
    for (int64_t pair = 0; pair < pairs; ++pair) ones[std::size_t(i * e + first_of(pair))] = 1;
  const std::vector<double> turned =
      op.turned(from_vector(ones, {1, 1, l, e}).to(x.dtype), op.inverse).to_vector<double>();
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const auto a = std::size_t(first_of(pair)), b = std::size_t(second_of(pair));
    exchanged[a] = int64_t(b), exchanged[b] = int64_t(a);
    for (std::size_t row = 0; row < std::size_t(l * e); row += std::size_t(e)) {
      cosines[row + a] = cosines[row + b] = turned[row + a];
      sines[row + a] = -turned[row + b], sines[row + b] = turned[row + b];
    }
  }
  const auto table = [&](const std::vector<double>& values) {
    return step.graph().constant(from_vector(values, {l, e}).to(x.dtype));
  };
  const Value other =
      step.node("Gather", {x, step.graph().integers(exchanged)}, {attribute("axis", int64_t(-1))});
  step.result(step.node(
      "Add", {step.node("Mul", {x, table(cosines)}), step.node("Mul", {other, table(sines)})}));
}

void attention(const Step& step) {
  const int64_t count = step.tensor(0).size(1);
  const Heads heads{step.runnable_input(0), repeated(step, 1, count), repeated(step, 2, count),
                    step.tensor(0).size(2), step.tensor(1).size(2)};
  step.result(attended(step, heads, step.op<Attention>().settings, 3));
}
void packed_attention(const Step& step) {
  const PackedAttention& op = step.op<PackedAttention>();
  const Sizes sizes = step.input_sizes(0);
  const int64_t length = step.tensor(0).size(1), width = step.tensor(0).size(2) / 3;
  const Value parts =
      step.reshape(step.runnable_input(0), {sizes[0], sizes[1], 3, op.heads, width / op.heads});
  const Value apart = step.transpose(parts, {2, 0, 3, 1, 4});
  const auto part = [&](int64_t i) {
    return step.node("Gather", {apart, step.graph().constant(scalar(double(i), i64))},
                     {attribute("axis", int64_t(0))});
  };
  const Value y = attended(step, {part(0), part(1), part(2), length, length}, op.settings, 1);
  step.result(step.reshape(step.transpose(y, {0, 2, 1, 3}), step.output_sizes()));
}
}  // namespace

std::vector<Conversion> product_conversions() {
  return {conversion<Linear>(linear),
          conversion<Matmul>(matmul),
          conversion<Dot>(dot),
          conversion<Rope>(rope),
          conversion<Attention>(attention),
          conversion<PackedAttention>(packed_attention)};
}

// Convolutions, pooling, resizing.

namespace {
using Two = std::array<int64_t, 2>;
std::vector<int64_t> list_of(const Two& two) { return {two[0], two[1]}; }
/// Returns ONNX's order: both beginnings, then both ends.
std::vector<int64_t> pads_of(const Two& padding) {
  return {padding[0], padding[1], padding[0], padding[1]};
}

Attributes geometry_of(const ConvGeometry& g) {
  return {attribute("strides", list_of(g.stride)), attribute("pads", pads_of(g.padding)),
          attribute("dilations", list_of(g.dilation)), attribute("group", g.groups)};
}
Value bias_of(const Step& step) { return step.has(2) ? step.runnable_input(2) : Value{}; }

void conv(const Step& step) {
  step.result(step.node("Conv", {step.runnable_input(0), step.runnable_input(1), bias_of(step)},
                        geometry_of(step.op<Conv2d>().geometry)));
}
void conv_transpose(const Step& step) {
  const ConvTranspose2d& op = step.op<ConvTranspose2d>();
  Attributes attributes = geometry_of(op.geometry);
  attributes.push_back(attribute("output_padding", list_of(op.output_padding.array())));
  step.result(step.node("ConvTranspose",
                        {step.runnable_input(0), step.runnable_input(1), bias_of(step)},
                        attributes));
}

Attributes window_of(const Step& step, const PoolGeometry& g, bool ceil_mode) {
  for (std::size_t d : {0u, 1u}) {
    // Runtimes disagree about a last window that begins in the padding after the image.
    const int64_t room = step.tensor(0).size(int64_t(2 + d)) + 2 * g.padding[d] -
                         (g.kernel[d] - 1) * g.dilation[d] - 1;
    const int64_t windows = (room + (ceil_mode ? g.stride[d] - 1 : 0)) / g.stride[d] + 1;
    if (windows != step.output().size(int64_t(2 + d)))
      step.refuse("whose last window begins in the padding, with ceil_mode");
  }
  return {attribute("kernel_shape", list_of(g.kernel)), attribute("strides", list_of(g.stride)),
          attribute("pads", pads_of(g.padding)), attribute("ceil_mode", int64_t(ceil_mode))};
}
/// Runtimes disagree about ceil_mode, so the padding after the image is what the last window needs.
/// Maxima ignore padding. Returns nullopt if it is a whole window, which runtimes refuse.
std::optional<Attributes> padded_window(const Step& step, const PoolGeometry& g) {
  std::vector<int64_t> pads = pads_of(g.padding);
  for (std::size_t d : {0u, 1u}) {
    const int64_t needed = (step.output().size(int64_t(2 + d)) - 1) * g.stride[d] +
                           (g.kernel[d] - 1) * g.dilation[d] + 1;
    pads[2 + d] = std::max<int64_t>(needed - step.tensor(0).size(int64_t(2 + d)) - g.padding[d], 0);
    if (pads[2 + d] >= g.kernel[d]) return std::nullopt;
  }
  return Attributes{attribute("kernel_shape", list_of(g.kernel)),
                    attribute("strides", list_of(g.stride)), attribute("pads", pads)};
}
void max_pool(const Step& step) {
  const MaxPool2d& op = step.op<MaxPool2d>();
  std::optional<Attributes> padded;
  if (op.ceil_mode) padded = padded_window(step, op.geometry);
  Attributes attributes = padded ? *padded : window_of(step, op.geometry, op.ceil_mode);
  attributes.push_back(attribute("dilations", list_of(op.geometry.dilation)));
  step.result(step.node("MaxPool", {step.wide_input(0)}, attributes));
}
void avg_pool(const Step& step) {
  const AvgPool2d& op = step.op<AvgPool2d>();
  Attributes attributes = window_of(step, op.geometry, op.ceil_mode);
  attributes.push_back(attribute("count_include_pad", int64_t(op.geometry.count_padding)));
  if (op.ceil_mode) step.graph().need_opset(19);
  step.result(step.node("AveragePool", {step.wide_input(0)}, attributes));
}
void adaptive_avg_pool(const Step& step) {
  const Two out = step.op<AdaptiveAvgPool2d>().output.array();
  const Two in{step.tensor(0).size(2), step.tensor(0).size(3)};
  const Value x = step.wide_input(0);
  if (out == Two{1, 1}) return step.result(step.node("GlobalAveragePool", {x}));
  if (in[0] % out[0] != 0 || in[1] % out[1] != 0)
    step.refuse("to a size that does not divide that of the image");
  const std::vector<int64_t> window{in[0] / out[0], in[1] / out[1]};
  step.result(step.node("AveragePool", {x},
                        {attribute("kernel_shape", window), attribute("strides", window)}));
}

void interpolate(const Step& step) {
  const InterpolateOptions& o = step.op<Interpolate>().options;
  const bool nearest = o.mode == Interpolation::nearest;
  const char* const coordinates =
      nearest ? "asymmetric" : (o.align_corners ? "align_corners" : "half_pixel");
  Attributes attributes{attribute("axes", std::vector<int64_t>{2, 3}),
                        attribute("mode", nearest ? "nearest" : "linear"),
                        attribute("coordinate_transformation_mode", coordinates)};
  if (nearest) attributes.push_back(attribute("nearest_mode", "floor"));
  Value scales, sizes;
  if (o.size) {
    sizes = step.graph().integers(list_of(o.size->array()));
  } else {
    const auto factors = o.scale_factor->array();
    scales =
        step.graph().constant(from_vector(std::vector{float(factors[0]), float(factors[1])}, {2}));
  }
  step.result(step.node("Resize", {step.wide_input(0), {}, scales, sizes}, attributes));
}
}  // namespace

std::vector<Conversion> image_conversions() {
  return {conversion<Conv2d>(conv),
          conversion<ConvTranspose2d>(conv_transpose),
          conversion<MaxPool2d>(max_pool),
          conversion<AvgPool2d>(avg_pool),
          conversion<AdaptiveAvgPool2d>(adaptive_avg_pool),
          conversion<Interpolate>(interpolate)};
}

// Recurrent layers. ONNX's LSTM and GRU project their inputs themselves, while halftone's take
// projected inputs. So the linear operation before becomes a part of the node. If there is none,
// the node's projection is a permutation. The gates have another order in ONNX.

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
          step.graph().constant(dtype == f32 ? weight : converted(weight, dtype)),
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

// Quantizers as pairs of QuantizeLinear and DequantizeLinear. ONNX has four short formats, and
// rounds to nearest even. A scale per tensor is computed in the graph, from the tensor of the call.

namespace {
struct Counterpart {
  NumberFormat grid;
  ShortFormat format;
  int opset;    // the first one that has the format
  double unit;  // the distance that ONNX calls 1
};
const Counterpart* counterpart_of(const NumberFormat& grid) {
  static const Counterpart all[]{{formats::e4m3, ShortFormat::e4m3, 19, 1},
                                 {formats::e5m2, ShortFormat::e5m2, 19, 1},
                                 {formats::e2m1, ShortFormat::e2m1, 23, 1},
                                 {formats::int8, ShortFormat::int8, 19, 1 / 64.}};
  for (const Counterpart& each : all)
    if (each.grid == grid) return &each;
  return nullptr;
}

/// Returns why a quantizer has no counterpart, or "".
std::string obstacle(const Quantizer& q) {
  const Scaling& s = q.scaling;
  if (!q.table.empty()) return "onto a table of numbers";
  if (!counterpart_of(q.grid)) return "onto a grid that ONNX does not have";
  if (q.rounding != Rounding::nearest_even)
    return "with the rounding " + std::string(name(q.rounding));
  if (q.hadamard > 0) return "with a rotation";
  if (q.clip.any()) return "with a clip";
  if (q.average > 0) return "by an average over steps";
  if (q.own) return "by a function of the program";
  if (s.per == Scaling::Per::block) return "with scales of blocks";
  if (s.per == Scaling::Per::tensor && s.from_history) return "with a scale from history";
  if (s.per == Scaling::Per::tensor && s.power_of_two) return "with a power-of-two scale";
  // All that is converted; another field, also one that comes later, has no counterpart.
  Quantizer converted;
  converted.grid = q.grid, converted.scaling.per = s.per;
  converted.scaling.least = s.least, converted.scaling.margin = s.margin;
  return q == converted ? "" : "with settings that ONNX does not have";
}

/// Returns the inverse of the factor that maps the largest magnitude of x to the grid's largest; 1
/// for a tensor of zeros.
Value scale_of(const Step& step, const Value& x, const Quantizer& q) {
  const auto number = [&](double value) { return step.number(value, x.dtype); };
  const Value all = step.reshape(x, {Size(-1)});
  Value largest =
      step.node("ReduceMax", {step.node("Abs", {all})}, {attribute("keepdims", int64_t(0))});
  if (q.scaling.least > 0) largest = step.node("Max", {largest, number(q.scaling.least)});
  const Value scale =
      step.node("Mul", {largest, number(std::ldexp(1 / double(q.grid.max), q.scaling.margin))});
  const Value is_zero = step.graph().add("Equal", {largest, number(0)}, boolean);
  return step.graph().add("Where", {is_zero, number(1), scale}, x.dtype);
}

void quantize(const Step& step) {
  const Quantizer& q = step.op<Quantize>().quantizer;
  if (const std::string why = obstacle(q); !why.empty()) step.refuse(why);
  const Counterpart& target = *counterpart_of(q.grid);
  Graph& graph = step.graph();
  graph.need_opset(target.opset);
  Value x = step.wide_input(0);
  if (x.dtype == f64) x = step.cast(x, f32);
  const bool scaled = q.scaling.per == Scaling::Per::tensor;
  Value scale = scaled ? scale_of(step, x, q) : step.number(1, f32);
  if (target.unit != 1) scale = step.node("Mul", {scale, step.number(target.unit, f32)});
  // halftone's int8 is symmetric; ONNX's has one more negative number.
  if (target.format == ShortFormat::int8) {
    const Value bound =
        scaled ? step.node("Mul", {scale, step.number(127, f32)}) : step.number(q.grid.max, f32);
    x = step.node("Max", {step.node("Min", {x, bound}), step.node("Neg", {bound})});
  }
  const Value zero = graph.zero_point(target.format);
  Attributes attributes;
  if (target.format == ShortFormat::e4m3 || target.format == ShortFormat::e5m2)
    attributes.push_back(attribute("saturate", int64_t(scaled || !q.grid.infinity)));
  const Value codes = graph.add("QuantizeLinear", {x, scale, zero}, u8, std::move(attributes));
  step.result(graph.add("DequantizeLinear", {codes, scale, zero}, f32));
}
}  // namespace

std::vector<Conversion> quantizer_conversions() { return {conversion<Quantize>(quantize)}; }

}  // namespace halftone::onnx
