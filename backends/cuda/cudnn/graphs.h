// The graphs of this folder as functions of tensors' layouts only, so that tests can request plans
// for GPUs that the machine does not have.
#pragma once

#include <optional>

#include <halftone/backends/cuda/cudnn/library.h>
#include <halftone/core/backend.h>

namespace halftone::cuda::cudnn {

/// The properties of a tensor that a graph depends on.
struct Form {
  Shape shape{};
  Strides strides{};
  DType dtype = f32;
  int64_t alignment = 16;

  Form() = default;
  Form(Shape s, Strides t, DType d) : shape(s), strides(t), dtype(d) {}
  explicit Form(const Tensor& x)
      : shape(x.shape()), strides(x.strides()), dtype(x.dtype()), alignment(alignment_of(x)) {}
};
/// Returns a tensor of a graph with this form.
inline Edge edge(Graph& graph, const Form& form) {
  return graph.tensor(form.shape, form.strides, form.dtype, form.alignment);
}

/// Makes the graph of a convolution. Forward: x, w -> y (and bias [1, out, 1, 1] between, if there
/// is one); backward data: x is dx, y is dy; backward filter: w is dw. All are channels-last. f32
/// is rounded to TF32 if tf32 allows it. Tensors in the order x, w, y, bias.
std::optional<ReadyGraph> conv_graph(const Target& target, cudnnBackendDescriptorType_t direction,
                                     const Form& x, const Form& w, const Form& y,
                                     const std::optional<Form>& bias, const ConvGeometry& g,
                                     bool tf32 = false);

/// Makes the graph of softmax(scale q k^T) v, of rank 4. Tensors: q, k, v, y, statistics, scale,
/// minus infinity.
std::optional<ReadyGraph> attention_graph(const Target& target, const Form& q, const Form& k,
                                          const Form& v, const Form& y, const Form& statistics,
                                          bool causal);
/// Makes the graph of its gradients. Tensors: q, k, v, y, statistics, dy, dq, dk, dv, delta (f32,
/// like statistics), scale, one, minus infinity. The engines that give the same bits in every run
/// store the gradient of the weights, of the size of q k^T, in their workspace.
std::optional<ReadyGraph> attention_backward_graph(const Target& target, const Form& q,
                                                   const Form& k, const Form& v, const Form& y,
                                                   const Form& statistics, const Form& dy,
                                                   const Form& dq, const Form& dk, const Form& dv,
                                                   bool causal);

}  // namespace halftone::cuda::cudnn
