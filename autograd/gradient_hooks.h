// Functions on the gradient of a tensor. backward() calls them with the whole gradient: to watch,
// clip or replace it. As torch.Tensor.register_hook.
#pragma once

#include <memory>

#include <halftone/autograd/node.h>

namespace halftone {

/// Names a registered hook. A copy names the same hook. The handle does not keep the tensor alive,
/// and its destruction does not remove the hook.
class HookHandle {
 public:
  HookHandle() = default;
  /// Removes the hook. Does nothing the second time, or if the tensor is gone.
  void remove();

 private:
  friend HookHandle register_hook(const Tensor& x, GradientHook hook);
  std::weak_ptr<AutogradMeta> leaf_;
  std::weak_ptr<Node> node_;
  uint64_t number_ = 0;
};

/// Registers `hook`. From the next backward() on, it gets the gradient of x once per pass, summed
/// over all uses of x: for a leaf before it is added to grad(), for a computed tensor before it
/// goes on to its inputs. A tensor that the hook returns (of the same shape and dtype) replaces the
/// gradient; an undefined one changes nothing. Several hooks run in the order of registration.
/// Nothing is recorded inside. Throws UsageError if x needs no gradient.
HookHandle register_hook(const Tensor& x, GradientHook hook);

}  // namespace halftone
