// The slot for a receiver of gradients before a backward pass ends, for example to send them while
// the rest of it computes. Per thread, like the caster's slot.
#pragma once

#include <halftone/autograd/node.h>
#include <halftone/core/language.h>

namespace halftone {

class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// Called during backward() when leaf.grad has all that this pass will add to it; the listener
  /// may take it away. Some leaves are not reported: those below a branch without gradients, those
  /// with hooks, and all leaves if a checkpointed segment hides uses.
  virtual void on_gradient(AutogradMeta& leaf) = 0;
};

using GradientListenerSlot = Slot<GradientListener*>;
using GradientListenerScope = GradientListenerSlot::Scope;

}  // namespace halftone
