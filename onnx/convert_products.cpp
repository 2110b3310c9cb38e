// Matrix products and attention. Products stay in the dtype of their inputs; the softmax inside
// attention is f32, as halftone's kernels compute it.
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/onnx/conversions.h>

namespace halftone::onnx {

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
  return step.graph().constant(dtype == f32 ? mask : Cast::converted(mask, dtype));
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
  return {conversion<Linear>(linear), conversion<Matmul>(matmul), conversion<Dot>(dot),
          conversion<Attention>(attention), conversion<PackedAttention>(packed_attention)};
}

}  // namespace halftone::onnx
