// Quantizers as pairs of QuantizeLinear and DequantizeLinear. ONNX has four short formats, and
// rounds to nearest even. A scale per tensor is computed in the graph, from the tensor of the call.
#include <cmath>

#include <halftone/autograd/ops.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/onnx/conversions.h>

namespace halftone::onnx {

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
  return {};
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
