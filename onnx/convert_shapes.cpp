// Changes of shape, and elements picked by indices. Sizes that depend on the batch are computed in
// the graph.
#include <halftone/autograd/ops.h>
#include <halftone/onnx/conversions.h>

namespace halftone::onnx {

namespace {
std::vector<int64_t> list_of(const Dims& dims) { return {dims.begin(), dims.end()}; }

void reshape(const Step& step) { step.result(step.reshape(step.input(0), step.output_sizes())); }
void permute(const Step& step) {
  step.result(step.transpose(step.input(0), list_of(step.op<Permute>().order)));
}
void expand(const Step& step) {
  const Value shape = step.graph().integers(step.output_sizes());
  step.result(step.node("Expand", {step.input(0), shape}));
}
void slice(const Step& step) {
  const int64_t dim = step.op<Slice>().dim, stride = step.op<Slice>().step;
  const Size start = step.size_of([&](std::size_t pass) { return step.op<Slice>(pass).start; });
  const Size end = step.size_of([&](std::size_t pass) {
    const Slice& op = step.op<Slice>(pass);
    return op.count == 0 ? op.start : op.start + (op.count - 1) * op.step + 1;
  });
  Graph& graph = step.graph();
  step.result(step.node(
      "Slice",
      {step.input(0), graph.integers(Sizes{start}), graph.integers(Sizes{end}),
       graph.integers(std::vector<int64_t>{dim}), graph.integers(std::vector<int64_t>{stride})}));
}
void cat(const Step& step) {
  std::vector<Value> inputs;
  for (std::size_t i = 0; i < step.input_count(); ++i) inputs.push_back(step.input(i));
  step.result(step.node("Concat", inputs, {attribute("axis", int64_t(step.op<Cat>().dim))}));
}
void pad(const Step& step) {
  const Pad& op = step.op<Pad>();
  std::vector<int64_t> amounts = list_of(op.before);
  amounts.insert(amounts.end(), op.after.begin(), op.after.end());
  const Value x = step.input(0);
  step.result(step.node("Pad", {x, step.graph().integers(amounts), step.number(op.value, x.dtype)},
                        {attribute("mode", "constant")}));
}
void same(const Step& step) { step.result(step.input(0)); }
void flip(const Step& step) {
  const std::vector<int64_t> dims = list_of(step.op<Flip>().dims);
  const auto all = [&](int64_t value) {
    return step.graph().integers(std::vector<int64_t>(dims.size(), value));
  };
  step.result(step.node("Slice", {step.input(0), all(-1), all(std::numeric_limits<int64_t>::min()),
                                  step.graph().integers(dims), all(-1)}));
}

Value wide_indices(const Step& step, std::size_t input) {
  return step.cast(step.input(input), i64);
}

void gather(const Step& step) {
  step.result(step.node("GatherElements", {step.input(0), wide_indices(step, 1)},
                        {attribute("axis", int64_t(step.op<Gather>().dim))}));
}
void scatter_add(const Step& step) {
  step.result(step.node(
      "ScatterElements", {step.wide_input(0), wide_indices(step, 1), step.wide_input(2)},
      {attribute("axis", int64_t(step.op<ScatterAdd>().dim)), attribute("reduction", "add")}));
}
void embedding(const Step& step) {
  step.result(
      step.node("Gather", {step.input(0), wide_indices(step, 1)}, {attribute("axis", int64_t(0))}));
}
}  // namespace

std::vector<Conversion> shape_conversions() {
  return {conversion<Reshape>(reshape, true),
          conversion<Permute>(permute),
          conversion<Expand>(expand, true),
          conversion<Slice>(slice, true),
          conversion<Cat>(cat),
          conversion<Pad>(pad),
          conversion<Contiguous>(same),
          conversion<Flip>(flip),
          conversion<Gather>(gather),
          conversion<ScatterAdd>(scatter_add),
          conversion<Embedding>(embedding)};
}

}  // namespace halftone::onnx
