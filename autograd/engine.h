// The reverse pass: from tensors back to the leaves, newest operation first.
#pragma once

#include <span>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone {

/// Accumulates the gradients of `root`, weighted by `seed` (its shape and dtype), into the leaves
/// it depends on. Saved tensors are freed as soon as an operation is done, unless `retain_graph`.
/// As torch.autograd.backward. Throws UsageError for a tensor without history or a graph that was
/// freed, DTypeError or ShapeError, naming the operation, for a gradient that does not fit.
void run_backward(const Tensor& root, const Tensor& seed, bool retain_graph);

namespace autograd {

struct GradOptions {
  /// One per output, of its shape and dtype; undefined or missing: ones, for outputs of one element
  std::vector<Tensor> grad_outputs{};
  bool retain_graph = false;
  /// If true, an input that the outputs do not depend on gets an undefined gradient, instead of an
  /// error
  bool allow_unused = false;
};

/// Returns the gradients of the sum of `outputs` with respect to `inputs` (leaves or computed
/// tensors), one for each; no leaf's grad() changes. As torch.autograd.grad, without create_graph:
/// gradients have no history. Throws UsageError as backward() does, for inputs that need no
/// gradient or are not reached, and for checkpointed segments.
std::vector<Tensor> grad(std::span<const Tensor> outputs, std::span<const Tensor> inputs,
                         const GradOptions& options = {});
std::vector<Tensor> grad(const Tensor& output, const std::vector<Tensor>& inputs,
                         const GradOptions& options = {});

}  // namespace autograd
}  // namespace halftone
