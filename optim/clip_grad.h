// Clipping of gradients, between unscaling and the optimizer step. Mirrors
// torch.nn.utils.clip_grad_norm_ and clip_grad_value_ (Pascanu et al. 2013). Norms and factors are
// f32 for any dtype of gradients. Both take parameters. For an optimizer with gradients of its own
// (master weights), pass optimizer.gradients() to the functions on gradients.
#pragma once

#include <span>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone::optim {

struct ClipOptions {
  /// p of the norm: the p-th root of the sum of all |g|^p, 1 or any other positive number, or
  /// infinity for the largest |g|. Values other than 2 take several passes.
  double norm_type = 2;
  bool error_if_nonfinite = false;  // costs a read of the norm, which waits for a GPU
};

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)); norm is the Euclidean norm, or another
/// p-norm, of all of them as one vector. Returns that norm, an f32 scalar on the gradients' device,
/// without waiting for it. Returns 0 without gradients.
Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm,
                      ClipOptions options = {});
Tensor clip_gradients_norm(std::span<Tensor> gradients, double max_norm, ClipOptions options = {});

/// Limits every element of every gradient to [-limit, limit].
void clip_grad_value(const std::vector<Tensor>& parameters, double limit);
void clip_gradients_value(std::span<Tensor> gradients, double limit);

}  // namespace halftone::optim
