// The slot of whoever wants gradients before a backward pass is over, to send them while the rest
// of it computes. Per thread, as the caster's.
#pragma once

#include <utility>

#include <halftone/autograd/node.h>

namespace halftone {

class GradientListener {
 public:
  virtual ~GradientListener() = default;
  /// During backward(): leaf.grad has all that this pass will add to it, and may be taken away.
  /// Leaves may go untold: those that a branch without gradients leads to, those with hooks, and
  /// all of them where a checkpointed segment hides uses.
  virtual void on_gradient(AutogradMeta& leaf) = 0;
};

namespace detail {
inline thread_local GradientListener* gradient_listener = nullptr;
}

/// Fills the slot until the scope ends; with null it empties it. The passes of segments that run
/// again inside of a pass tell nobody.
class GradientListenerScope {
 public:
  [[nodiscard]] explicit GradientListenerScope(GradientListener* listener)
      : before_(std::exchange(detail::gradient_listener, listener)) {}
  ~GradientListenerScope() { detail::gradient_listener = before_; }
  GradientListenerScope(const GradientListenerScope&) = delete;
  GradientListenerScope& operator=(const GradientListenerScope&) = delete;

 private:
  GradientListener* before_;
};

}  // namespace halftone
