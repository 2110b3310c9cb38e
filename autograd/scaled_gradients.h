// Marks gradients of a loss that was multiplied by a loss scale, until they are written again: a
// step that uses them unchanged is a mistake.
#pragma once

#include <halftone/autograd/node.h>

namespace halftone {

/// From now on, gradients that pass through the operation that made this tensor count as scaled.
inline void mark_scaled_loss(const Tensor& loss) {
  if (loss.meta() && loss.meta()->creator) loss.meta()->creator->scales_loss = true;
}

/// Returns whether the gradient of a leaf is of a scaled loss. A write into it (unscaling,
/// clipping) or a replacement ends that.
inline bool has_scaled_gradient(const Tensor& leaf) {
  const AutogradMeta* const meta = leaf.meta().get();
  return meta && meta->scaled_version && meta->grad.defined() &&
         meta->grad.storage()->version() == *meta->scaled_version;
}

}  // namespace halftone
