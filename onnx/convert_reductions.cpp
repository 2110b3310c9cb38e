// Reductions, softmax and normalizations. Short floats are widened first, as halftone's kernels do.
#include <cmath>

#include <halftone/autograd/ops.h>
#include <halftone/onnx/conversions.h>

namespace halftone::onnx {

namespace {
Value reduced(const Step& step, std::string_view type, const Value& x,
              const std::vector<int64_t>& dims, bool keep) {
  const Value axes = dims.empty() ? Value{} : step.graph().integers(dims);
  return step.node(type, {x, axes}, {attribute("keepdims", int64_t(keep))});
}
Value reduced(const Step& step, std::string_view type, const Value& x, const ReduceDims& over) {
  return reduced(step, type, x, std::vector(over.dims.begin(), over.dims.end()), over.keep);
}
/// Sums and products of integers and bools are i64.
Value summand(const Step& step) {
  const Value x = step.wide_input(0);
  return is_floating(x.dtype) ? x : step.cast(x, i64);
}

void sum(const Step& step) {
  step.result(reduced(step, "ReduceSum", summand(step), step.op<Sum>().over));
}
void mean(const Step& step) {
  step.result(reduced(step, "ReduceMean", step.wide_input(0), step.op<Mean>().over));
}
void max(const Step& step) {
  step.result(reduced(step, "ReduceMax", step.wide_input(0), step.op<Max>().over));
}
void min(const Step& step) {
  step.result(reduced(step, "ReduceMin", step.wide_input(0), step.op<Min>().over));
}
void prod(const Step& step) {
  step.result(reduced(step, "ReduceProd", summand(step), step.op<Prod>().over));
}
void norm(const Step& step) {
  const Norm& op = step.op<Norm>();
  const Value x = step.wide_input(0);
  if (op.p == 2) return step.result(reduced(step, "ReduceL2", x, op.over));
  if (op.p == 1) return step.result(reduced(step, "ReduceL1", x, op.over));
  const Value magnitude = step.node("Abs", {x});
  if (std::isinf(op.p))
    return step.result(reduced(step, op.p > 0 ? "ReduceMax" : "ReduceMin", magnitude, op.over));
  if (op.p == 0) step.refuse("of order 0");
  const Value powers = step.node("Pow", {magnitude, step.number(op.p, x.dtype)});
  const Value total = reduced(step, "ReduceSum", powers, op.over);
  step.result(step.node("Pow", {total, step.number(1 / op.p, x.dtype)}));
}
void var(const Step& step) {
  const Var& op = step.op<Var>();
  const std::vector<int64_t> dims(op.over.dims.begin(), op.over.dims.end());
  const Size count = step.size_of([&](std::size_t pass) {
    return step.tensor(0, pass).numel() / std::max<int64_t>(step.output(pass).numel(), 1);
  });
  if (count.per_row != 0) step.refuse("over the batch");
  const Value x = step.wide_input(0);
  const Value distance = step.node("Sub", {x, reduced(step, "ReduceMean", x, dims, true)});
  const Value squares = step.node("Mul", {distance, distance});
  const Value total = reduced(step, "ReduceSum", squares, op.over);
  step.result(step.node("Div", {total, step.number(double(count.fixed) - op.correction, x.dtype)}));
}
template <bool largest> void place_of_extreme(const Step& step) {
  step.result(
      step.graph().add(largest ? "ArgMax" : "ArgMin", {step.wide_input(0)}, i64,
                       {attribute("axis", int64_t(-1)), attribute("keepdims", int64_t(0))}));
}
template <class Op, bool largest> void truth(const Step& step) {
  const Value x = step.cast(step.cast(step.input(0), boolean), i32);
  step.result(step.cast(reduced(step, largest ? "ReduceMax" : "ReduceMin", x, step.op<Op>().over),
                        boolean));
}
void argsort(const Step& step) {
  const Value x = step.wide_input(0);
  const Tensor& sorted = step.tensor(0);
  if (sorted.rank() == 0) step.refuse("of a scalar");
  const Value count = step.graph().integers(Sizes{step.input_sizes(0).back()});
  const std::vector<Value> both =
      step.graph().add("TopK", {x, count}, i64, 2,
                       {attribute("axis", int64_t(-1)),
                        attribute("largest", int64_t(step.op<ArgSort>().descending))});
  step.result(both[1]);
}
void cumulative_sum(const Step& step) {
  const Value axis = step.graph().constant(scalar(step.rank(0) - 1, i64));
  step.result(step.node("CumSum", {summand(step), axis}));
}

/// ONNX has no running product: multiplies by the products of 1, 2, 4, ... neighbors before.
void cumulative_product(const Step& step) {
  const Size size = step.input_sizes(0).back();
  if (size.per_row != 0) step.refuse("over the batch");
  Graph& graph = step.graph();
  const auto one = [&](int64_t value) { return graph.integers(std::vector<int64_t>{value}); };
  Value y = summand(step);
  const auto rank = std::size_t(step.rank(0));
  for (int64_t by = 1; by < size.fixed; by *= 2) {
    std::vector<int64_t> amounts(2 * rank, 0);
    amounts[rank - 1] = by;
    const Value before =
        step.node("Slice", {y, one(0), one(size.fixed - by), one(int64_t(rank) - 1)});
    const Value factor =
        step.node("Pad", {before, graph.integers(amounts), step.number(1, y.dtype)},
                  {attribute("mode", "constant")});
    y = step.node("Mul", {y, factor});
  }
  step.result(y);
}

template <const char* type> void along_last(const Step& step) {
  step.result(step.node(type, {step.wide_input(0)}, {attribute("axis", int64_t(-1))}));
}
constexpr char softmax_type[] = "Softmax", log_softmax_type[] = "LogSoftmax";

void log_sum_exp(const Step& step) {
  step.result(reduced(step, "ReduceLogSumExp", step.wide_input(0), {-1}, false));
}

// --- normalizations

Value filled(const Step& step, const Shape& shape, double value, DType dtype) {
  return step.graph().constant(full(shape, value, dtype));
}
Value optional_in(const Step& step, std::size_t input, DType dtype) {
  return step.has(input) ? step.cast(step.input(input), dtype) : Value{};
}

void layer_norm(const Step& step) {
  const LayerNorm& op = step.op<LayerNorm>();
  const Value x = step.wide_input(0), weight = optional_in(step, 1, x.dtype);
  step.result(
      step.node("LayerNormalization",
                {x, weight.defined() ? weight : filled(step, op.normalized, 1, x.dtype),
                 optional_in(step, 2, x.dtype)},
                {attribute("axis", -int64_t(op.normalized.rank())), attribute("epsilon", op.eps)}));
}
void rms_norm(const Step& step) {
  const RmsNorm& op = step.op<RmsNorm>();
  const Value x = step.wide_input(0), weight = optional_in(step, 1, x.dtype);
  std::vector<int64_t> dims;
  for (int i = op.normalized.rank(); i > 0; --i) dims.push_back(-i);
  const Value squares = reduced(step, "ReduceMean", step.node("Mul", {x, x}), dims, true);
  const Value root = step.node("Sqrt", {step.node("Add", {squares, step.number(op.eps, x.dtype)})});
  const Value y = step.node("Div", {x, root});
  step.result(weight.defined() ? step.node("Mul", {y, weight}) : y);
}

/// Normalizes each of `groups` parts of the channels of each sample.
void normalize_groups(const Step& step, int64_t groups, double eps) {
  const Value x = step.wide_input(0);
  const Sizes sizes = step.input_sizes(0);
  const int64_t channels = step.tensor(0).size(1);
  int64_t part = channels / groups;
  for (std::size_t i = 2; i < sizes.size(); ++i) {
    if (sizes[i].per_row != 0) step.refuse("of images whose size depends on the batch");
    part *= sizes[i].fixed;
  }
  const Value parts = step.reshape(x, {sizes[0], groups, part});
  Value y =
      step.node("InstanceNormalization",
                {parts, filled(step, {groups}, 1, x.dtype), filled(step, {groups}, 0, x.dtype)},
                {attribute("epsilon", eps)});
  y = step.reshape(y, sizes);
  Sizes along(std::size_t(step.rank(0)), Size(1));
  along[1] = channels;
  const auto spread = [&](std::size_t input) {
    return step.reshape(optional_in(step, input, x.dtype), along);
  };
  if (step.has(1)) y = step.node("Mul", {y, spread(1)});
  if (step.has(2)) y = step.node("Add", {y, spread(2)});
  step.result(y);
}
void group_norm(const Step& step) {
  normalize_groups(step, step.op<GroupNorm>().groups, step.op<GroupNorm>().eps);
}
void instance_norm(const Step& step) {
  normalize_groups(step, step.tensor(0).size(1), step.op<InstanceNorm>().norm.eps);
}

Value normalized_batch(const Step& step, const BatchNorm& op) {
  if (op.options.training || !op.running.mean.defined())
    step.refuse("with the statistics of the batch");
  const Value x = step.wide_input(0);
  const Shape channels{step.tensor(0).size(1)};
  const auto or_filled = [&](std::size_t input, double value) {
    const Value given = optional_in(step, input, x.dtype);
    return given.defined() ? given : filled(step, channels, value, x.dtype);
  };
  const auto running = [&](const Tensor& t) { return step.cast(step.known(t), x.dtype); };
  return step.node(
      "BatchNormalization",
      {x, or_filled(1, 1), or_filled(2, 0), running(op.running.mean), running(op.running.variance)},
      {attribute("epsilon", op.options.eps)});
}
void batch_norm(const Step& step) { step.result(normalized_batch(step, step.op<BatchNorm>())); }
void batch_norm_relu(const Step& step) {
  Value y = normalized_batch(step, step.op<BatchNormRelu>().norm);
  if (step.has(3)) y = step.node("Add", {y, step.wide_input(3)});
  step.result(step.node("Relu", {y}));
}
}  // namespace

std::vector<Conversion> reduction_conversions() {
  return {conversion<Sum>(sum),
          conversion<Mean>(mean),
          conversion<Max>(max),
          conversion<Min>(min),
          conversion<Prod>(prod),
          conversion<Norm>(norm),
          conversion<Var>(var),
          conversion<ArgMax>(place_of_extreme<true>),
          conversion<ArgMin>(place_of_extreme<false>),
          conversion<Any>(truth<Any, true>),
          conversion<All>(truth<All, false>),
          conversion<ArgSort>(argsort),
          conversion<CumulativeSum>(cumulative_sum),
          conversion<CumulativeProduct>(cumulative_product),
          conversion<Softmax>(along_last<softmax_type>),
          conversion<LogSoftmax>(along_last<log_softmax_type>),
          conversion<LogSumExp>(log_sum_exp),
          conversion<LayerNorm>(layer_norm),
          conversion<RmsNorm>(rms_norm),
          conversion<GroupNorm>(group_norm),
          conversion<InstanceNorm>(instance_norm),
          conversion<BatchNorm>(batch_norm),
          conversion<BatchNormRelu>(batch_norm_relu)};
}

}  // namespace halftone::onnx
