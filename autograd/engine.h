// The reverse pass: from a tensor back to the leaves, newest operation first.
#pragma once

#include <halftone/core/tensor.h>

namespace halftone {

/// Accumulates the gradients of `root`, weighted by `seed` (its shape and dtype), into the leaves
/// it depends on. Saved tensors are freed as soon as an operation is done, unless `retain_graph`.
/// As torch.autograd.backward. Throws UsageError for a tensor without history or a graph that was
/// freed, DTypeError or ShapeError, naming the operation, for a gradient that does not fit.
void run_backward(const Tensor& root, const Tensor& seed, bool retain_graph);

}  // namespace halftone
