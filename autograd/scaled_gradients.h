// Which gradients are those of a loss that was multiplied by a loss scale, and have not been
// written since: a step that takes them as they are is a mistake.
#pragma once

#include <halftone/autograd/node.h>

namespace halftone {

/// From now on gradients that pass through the operation that made this tensor count as scaled.
inline void mark_scaled_loss(const Tensor& loss) {
  if (loss.meta() && loss.meta()->creator) loss.meta()->creator->scales_loss = true;
}

/// Whether the gradient of a leaf is of a scaled loss. What writes into it (unscaling, clipping)
/// and what replaces it ends that.
inline bool has_scaled_gradient(const Tensor& leaf) {
  const AutogradMeta* const meta = leaf.meta().get();
  return meta && meta->scaled_version && meta->grad.defined() &&
         meta->grad.storage()->version() == *meta->scaled_version;
}

}  // namespace halftone
