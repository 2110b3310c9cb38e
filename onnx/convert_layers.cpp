// Convolutions, pooling, resizing.
#include <halftone/autograd/ops.h>
#include <halftone/onnx/conversions.h>

namespace halftone::onnx {

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

}  // namespace halftone::onnx
