// The slot of whoever wants gradients before a backward pass is over, to send them while the rest
// of it computes. Per thread, as the caster's.
#pragma once

#include <halftone/autograd/node.h>
#include <halftone/core/thread_slot.h>

namespace halftone {

class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// During backward(): leaf.grad has all that this pass will add to it, and may be taken away.
  /// Leaves may go untold: those that a branch without gradients leads to, those with hooks, and
  /// all of them where a checkpointed segment hides uses.
  virtual void on_gradient(AutogradMeta& leaf) = 0;
};

using GradientListenerSlot = Slot<GradientListener*>;
using GradientListenerScope = GradientListenerSlot::Scope;

}  // namespace halftone
