// Convolutions by cuDNN on channels-last images. Weights have the layout [out, in, kh, kw]; cuDNN's
// fast engines also need them channels-last (for_cudnn.h). f64 goes to the own kernels.
#include <halftone/backends/cuda/cudnn/cudnn.h>
#include <halftone/backends/cuda/cudnn/graph.h>
#include <halftone/backends/cuda/for_cudnn.h>
#include <halftone/core/device.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>

namespace halftone::cuda::cudnn {

namespace {

constexpr auto forward = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR;
constexpr auto backward_data = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
constexpr auto backward_filter = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR;

std::vector<int64_t> list(const std::array<int64_t, 2>& two) { return {two[0], two[1]}; }

bool takes(const Tensor& x, const Tensor& w, const Tensor& y) {
  const bool short_or_f32 = x.dtype() == f32 || x.dtype() == f16 || x.dtype() == bf16;
  return usable() && short_or_f32 && x.numel() > 0 && w.numel() > 0 && y.numel() > 0;
}

Key key_of(cudnnBackendDescriptorType_t direction, const Tensor& x, const Tensor& w,
           const Tensor& y, const Tensor& bias, const ConvGeometry& g) {
  Key key{int64_t(direction), g.stride[0],   g.stride[1], g.padding[0], g.padding[1],
          g.dilation[0],      g.dilation[1], g.groups,    allow_tf32()};
  for (const Tensor* t : {&x, &w, &y, &bias}) append(key, *t);
  return key;
}

/// Returns strides from which cuDNN recognizes channels-last, also if a size is 1.
Form channels_last_form(const Tensor& x) {
  Form form(x);
  form.strides = channels_last_strides(x.shape());
  return form;
}

Tensor channels_last_scratch(const Context& context, const Shape& shape, DType dtype) {
  const MemoryScope scope(MemoryUse::workspace);
  return empty_channels_last(shape, dtype, context.device());
}

/// Returns [out] as [1, out, 1, 1].
Tensor as_image(const Tensor& bias) {
  const int64_t n = bias.numel();
  return bias.view_as({1, n, 1, 1}, {n, bias.strides()[0], n, n}, bias.offset());
}

Family family_of(cudnnBackendDescriptorType_t direction) {
  if (direction == forward) return Family::conv;
  return direction == backward_data ? Family::conv_backward_data : Family::conv_backward_weights;
}

/// bias: as an image, or undefined. Returns false if cuDNN declines.
bool run(Library& library, Context& context, cudnnBackendDescriptorType_t direction,
         const Tensor& x, const Tensor& w, const Tensor& y, const Tensor& bias,
         const ConvGeometry& g) {
  std::vector<const void*> addresses{x.raw_data(), w.raw_data(), y.raw_data()};
  if (bias.defined()) addresses.push_back(bias.raw_data());
  const auto make = [&](const Target& target) {
    return conv_graph(target, direction, channels_last_form(x), channels_last_form(w),
                      channels_last_form(y),
                      bias.defined() ? std::optional(Form(bias)) : std::nullopt, g, allow_tf32());
  };
  return library.run(context, family_of(direction),
                     log_wanted() ? text_of({&x, &w, &y, &bias}) : "",
                     key_of(direction, x, w, y, bias, g), make, addresses);
}

/// cuDNN 9.19 on an H100 rounds a short product of single pixels before it adds a bias, if their
/// channels are not aligned to 16 bytes.
bool rounds_once(const Tensor& w, const Tensor& y) {
  const bool single_pixels = w.shape()[2] == 1 && w.shape()[3] == 1;
  return size_of(y.dtype()) > 2 || !single_pixels ||
         (w.shape()[0] % 8 == 0 && w.shape()[1] % 8 == 0);
}

}  // namespace

std::optional<ReadyGraph> conv_graph(const Target& target, cudnnBackendDescriptorType_t direction,
                                     const Form& x, const Form& w, const Form& y,
                                     const std::optional<Form>& bias, const ConvGeometry& g,
                                     bool tf32) {
  Graph graph;
  const Edge ex = edge(graph, x), ew = edge(graph, w), ey = edge(graph, y);
  std::vector<int64_t> tensors{ex.number, ew.number, ey.number};
  const std::vector<int64_t> padding = list(g.padding), stride = list(g.stride),
                             dilation = list(g.dilation);
  if (bias) {
    const Edge eb = edge(graph, *bias), sum = graph.inner(y.shape, y.strides, f32);
    graph.conv(direction, ex, ew, sum, padding, stride, dilation);
    graph.pointwise(CUDNN_POINTWISE_ADD, sum, &eb, ey);
    tensors.push_back(eb.number);
  } else {
    graph.conv(direction, ex, ew, ey, padding, stride, dilation);
  }
  const InputRounding rounding = x.dtype != f32 ? InputRounding::any
                                 : tf32         ? InputRounding::to_tf32
                                                : InputRounding::none;
  std::optional<Plan> plan = graph.plan(target, rounding);
  if (!plan) return std::nullopt;
  return ReadyGraph{std::move(*plan), std::move(tensors)};
}

bool conv(Context& context, const Tensor& x, const Tensor& w, const Tensor& bias,
          const ConvGeometry& g, Tensor& y) {
  if (!takes(x, w, y)) return false;
  Library& library = Library::of(context);
  const std::lock_guard lock(library.mutex());
  const Tensor weight = channels_last_weight(context, w);
  const Tensor image_bias = bias.defined() ? as_image(bias) : bias;
  if ((!bias.defined() || rounds_once(w, y)) &&
      run(library, context, forward, x, weight, y, image_bias, g))
    return true;
  if (!bias.defined()) return false;
  // The bias is added in a separate kernel. A short y would be rounded twice, so the sum is in f32.
  const Tensor sum = size_of(y.dtype()) > 2 ? y : channels_last_scratch(context, y.shape(), f32);
  if (!run(library, context, forward, x, weight, sum, {}, g)) return false;
  backend_for(y).binary(call_of<BinaryFormulas>(formula::Add{}), sum,
                        views::expand(image_bias, y.shape()), y);
  return true;
}

bool conv_backward_data(Context& context, const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                        Tensor& dx) {
  if (!takes(dy, w, dx)) return false;
  Library& library = Library::of(context);
  const std::lock_guard lock(library.mutex());
  const Tensor weight = channels_last_weight(context, w);
  return run(library, context, backward_data, dx, weight, dy, {}, g);
}

bool conv_backward_weights(Context& context, const Tensor& x, const Tensor& dy,
                           const ConvGeometry& g, Tensor& dw) {
  if (!takes(x, dw, dy)) return false;
  Library& library = Library::of(context);
  const std::lock_guard lock(library.mutex());
  // f32 gradients of short floats are rounded to the short dtype once, as in PyTorch under
  // autocast: cuDNN 9.19 has fast engines only for these, and on many GPUs none that writes f32.
  for (const DType dtype : {x.dtype(), dw.dtype()}) {
    const bool in_place = dtype == dw.dtype() && dw.is_channels_last();
    Tensor written = in_place ? dw : channels_last_scratch(context, dw.shape(), dtype);
    if (!run(library, context, backward_filter, x, written, dy, {}, g)) continue;
    if (!in_place) backend_for(dw).copy(written, dw);
    return true;
  }
  return false;
}

}  // namespace halftone::cuda::cudnn
