// Convolutions. Data stays NHWC. oneDNN chooses the weights' layout; the wrapper converts from and
// to PyTorch's.
#include <halftone/backends/cpu/onednn/onednn.h>

#include <atomic>

#include <omp.h>

#include <halftone/backends/cpu/onednn/adapter.h>
#include <halftone/backends/reference/loops.h>
#include <halftone/backends/team.h>
#include <halftone/core/tensor.h>

namespace halftone::onednn {

namespace {
using Dims4 = dnnl::memory::dims;
using Tag = dnnl::memory::format_tag;
using Desc = dnnl::memory::desc;

/// The descriptors and numbers of one convolution: x -> y with weights w.
struct Problem {
  Desc x, y, w_any, w_plain, w_forward, bias;  // w_forward: of the forward convolution, x's dtype
  Dims4 stride, dilation, padding_before, padding_after;
  PlanKey key;
  bool has_bias;

  Problem(int operation, const Tensor& x_in, const Tensor& w, const Tensor& bias_in,
          const Tensor& y_in, const ConvGeometry& g)
      : has_bias(bias_in.defined()) {
    const auto dims = [](const Tensor& t) { return Dims4(t.shape().begin(), t.shape().end()); };
    const auto type = *data_type(x_in.dtype()), w_type = *data_type(w.dtype());
    x = Desc(dims(x_in), type, Tag::nhwc),
    y = Desc(dims(y_in), *data_type(y_in.dtype()), Tag::nhwc);
    const int64_t out = w.shape()[0] / g.groups;
    const Dims4 w_dims =
        g.groups == 1 ? dims(w) : Dims4{g.groups, out, w.shape()[1], w.shape()[2], w.shape()[3]};
    w_any = Desc(w_dims, w_type, Tag::any), w_forward = Desc(w_dims, type, Tag::any);
    const bool plain = w.is_contiguous();
    if (g.groups == 1) w_plain = Desc(w_dims, w_type, plain ? Tag::oihw : Tag::ohwi);
    else w_plain = Desc(w_dims, w_type, plain ? Tag::goihw : Tag::gohwi);
    bias = has_bias ? Desc({w.shape()[0]}, *data_type(bias_in.dtype()), Tag::x) : Desc();
    key = {operation,          team_size(),           int64_t(x_in.dtype()),
           int64_t(w.dtype()), int64_t(y_in.dtype()), has_bias ? int64_t(bias_in.dtype()) : -1,
           g.groups,           int64_t(plain)};
    for (const Tensor* t : {&x_in, &w, &y_in})
      key.insert(key.end(), t->shape().begin(), t->shape().end());
    for (std::size_t d : {0u, 1u}) {
      stride.push_back(g.stride[d]), dilation.push_back(g.dilation[d] - 1),
          padding_before.push_back(g.padding[d]);
      // Pixels after the last window are cut off: negative padding in oneDNN's terms.
      const int64_t span = g.dilation[d] * (w.shape()[2 + int(d)] - 1) + 1;
      padding_after.push_back((y_in.shape()[2 + int(d)] - 1) * g.stride[d] + span -
                              x_in.shape()[2 + int(d)] - g.padding[d]);
      key.insert(key.end(), {g.stride[d], g.dilation[d], g.padding[d]});
    }
  }

  dnnl::convolution_forward::primitive_desc forward() const {
    constexpr auto kind = dnnl::prop_kind::forward_training;
    constexpr auto algorithm = dnnl::algorithm::convolution_direct;
    return describe<dnnl::convolution_forward>(user_scratchpad(), std::nullopt, kind, algorithm, x,
                                               w_forward, bias, y, stride, dilation, padding_before,
                                               padding_after);
  }
};

/// Returns whether every window touches the image and fewer pixels than a stride are left after the
/// last one, as in usual networks. For other geometries version 2.6 writes outside of its buffers.
bool is_ordinary(const Tensor& x, const Tensor& w, const ConvGeometry& g, const Tensor& y) {
  for (int i : {0, 1}) {
    const auto d = std::size_t(i);
    const int64_t span = g.dilation[d] * (w.shape()[2 + i] - 1) + 1, in = x.shape()[2 + i],
                  after = (y.shape()[2 + i] - 1) * g.stride[d] + span - in - g.padding[d];
    if (g.padding[d] >= span || after >= span || after <= -g.stride[d] || span > in + g.padding[d])
      return false;
  }
  return true;
}

bool served(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
            const Tensor& y) {
  return is_ordinary(x, w, g, y) && data_type(x.dtype()) && data_type(w.dtype()) &&
         data_type(y.dtype()) && (!bias.defined() || data_type(bias.dtype())) && x.numel() > 0 &&
         y.numel() > 0;
}

/// Returns whether oneDNN would compute a wrong y. Version 3.7 does on AVX-512 for one input
/// channel per group (brg_conv_fwd:avx512_core) if windows step sideways and y is one pixel wide.
bool miscomputes(const Tensor& w, const ConvGeometry& g, const Tensor& y) {
  return w.shape()[1] == 1 && g.stride[1] > 1 && y.shape()[3] == 1;
}

/// Returns whether oneDNN would compute wrong gradients of weights. Version 2.6 does on AVX2 for 1
/// x 1 kernels with a stride and channels that do not fill a vector. In bf16 it leaves taps
/// unwritten that touch no pixel, which exist if the image is narrower than the stride. Also in
/// bf16, it adds up other pixels if rows are dilated and images wide (jit_bf16:avx512_core_bf16).
bool miscomputes_weights(const Tensor& x, const Tensor& w, const ConvGeometry& g) {
  const bool strided_point = w.shape()[2] == 1 && w.shape()[3] == 1 &&
                             (g.stride[0] > 1 || g.stride[1] > 1) && w.shape()[1] % 16 != 0;
  const bool dilated_rows = x.dtype() == bf16 && g.dilation[0] > 1;
  return strided_point || dilated_rows || x.shape()[3] < g.stride[1];
}

/// Returns whether oneDNN would compute wrong gradients of data. Version 2.6 does in bf16 on
/// AVX512-BF16, for 1 x 1 kernels with an odd number of output channels and some numbers of pixels:
/// it multiplies dy of the last channel by dy instead of by the weight
/// (jit_bf16_1x1:avx512_core_bf16). Such kernels are rare (the head of a model with an odd number
/// of classes), so every size of them goes to the own products.
bool miscomputes_data(const Tensor& w, const ConvGeometry& g) {
  return w.dtype() == bf16 && w.shape()[2] == 1 && w.shape()[3] == 1 &&
         w.shape()[0] / g.groups % 2 != 0;
}

/// Calls f(images of a, images of b) for groups of images, which threads that lack cores take in
/// turn; a call computes with one thread. Returns whether all calls returned true. The results are
/// those of one call with all images (tests/backends/onednn_geometries.h).
template <class F> bool by_images(const Tensor& a, const Tensor& b, const F& f) {
  const int64_t images = a.shape()[0], size = reference::pieces_of(images, 8 * team_size());
  std::atomic<bool> served = true;
  reference::parallel_tasks(reference::pieces_of(images, size), [&](int64_t i) {
    const int64_t first = i * size, count = std::min(size, images - first);
    if (!served || !f(views::slice(a, 0, first, count), views::slice(b, 0, first, count)))
      served = false;
  });
  return served;
}
bool wants_images_in_turn(const Tensor& x) {
  return crowded() && !omp_in_parallel() && x.shape()[0] > 1;
}
}  // namespace

bool conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g, Tensor& y) {
  if (!served(x, w, bias, g, y) || miscomputes(w, g, y)) return false;
  if (wants_images_in_turn(x))
    return by_images(x, y,
                     [&](const Tensor& some, Tensor to) { return conv(some, w, bias, g, to); });
  const Problem problem(0, x, w, bias, y, g);
  const std::shared_ptr<const Plan> plan = plan_for("conv2d", problem.key, [&] {
    const auto description = problem.forward();
    Plan built{.primitive = dnnl::convolution_forward(description)};
    built.inputs = {{DNNL_ARG_SRC, input_layout(problem.x, description.src_desc())},
                    {DNNL_ARG_WEIGHTS, input_layout(problem.w_plain, description.weights_desc())}};
    if (problem.has_bias)
      built.inputs.push_back({DNNL_ARG_BIAS, input_layout(problem.bias, problem.bias)});
    built.outputs = {{DNNL_ARG_DST, output_layout(problem.y, description.dst_desc())}};
    finish(built, description);
    return built;
  });
  if (!plan) return false;
  const void* inputs[] = {x.raw_data(), w.raw_data(), problem.has_bias ? bias.raw_data() : nullptr};
  void* outputs[] = {y.raw_data()};
  execute("conv2d", plan, inputs, outputs);
  return true;
}

bool conv_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g, Tensor& dx) {
  if (!served(dx, w, {}, g, dy) || miscomputes_data(w, g)) return false;
  if (wants_images_in_turn(dy))
    return by_images(
        dy, dx, [&](const Tensor& some, Tensor to) { return conv_backward_data(some, w, g, to); });
  const Problem problem(1, dx, w, {}, dy, g);
  const std::shared_ptr<const Plan> plan = plan_for("conv2d", problem.key, [&] {
    constexpr auto algorithm = dnnl::algorithm::convolution_direct;
    const auto description = describe<dnnl::convolution_backward_data>(
        user_scratchpad(), problem.forward(), algorithm, problem.x, problem.w_any, problem.y,
        problem.stride, problem.dilation, problem.padding_before, problem.padding_after);
    Plan built{.primitive = dnnl::convolution_backward_data(description)};
    built.inputs = {{DNNL_ARG_DIFF_DST, input_layout(problem.y, description.diff_dst_desc())},
                    {DNNL_ARG_WEIGHTS, input_layout(problem.w_plain, description.weights_desc())}};
    built.outputs = {{DNNL_ARG_DIFF_SRC, output_layout(problem.x, description.diff_src_desc())}};
    finish(built, description);
    return built;
  });
  if (!plan) return false;
  const void* inputs[] = {dy.raw_data(), w.raw_data()};
  void* outputs[] = {dx.raw_data()};
  execute("conv2d", plan, inputs, outputs);
  return true;
}

bool conv_backward_weights(const Tensor& x, const Tensor& dy, const ConvGeometry& g, Tensor& dw) {
  if (!served(x, dw, {}, g, dy) || miscomputes_weights(x, dw, g)) return false;
  const Problem problem(2, x, dw, {}, dy, g);
  const std::shared_ptr<const Plan> plan = plan_for("conv2d", problem.key, [&] {
    constexpr auto algorithm = dnnl::algorithm::convolution_direct;
    const auto description = describe<dnnl::convolution_backward_weights>(
        user_scratchpad(), problem.forward(), algorithm, problem.x, problem.w_any, problem.bias,
        problem.y, problem.stride, problem.dilation, problem.padding_before, problem.padding_after);
    Plan built{.primitive = dnnl::convolution_backward_weights(description)};
    built.inputs = {{DNNL_ARG_SRC, input_layout(problem.x, description.src_desc())},
                    {DNNL_ARG_DIFF_DST, input_layout(problem.y, description.diff_dst_desc())}};
    built.outputs = {
        {DNNL_ARG_DIFF_WEIGHTS, output_layout(problem.w_plain, description.diff_weights_desc())}};
    finish(built, description);
    return built;
  });
  if (!plan) return false;
  const void* inputs[] = {x.raw_data(), dy.raw_data()};
  void* outputs[] = {dw.raw_data()};
  execute("conv2d", plan, inputs, outputs);
  return true;
}

}  // namespace halftone::onednn
