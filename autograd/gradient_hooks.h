// Functions on the gradient of a tensor, called during backward() with the whole of it: to watch,
// clip or replace it. As torch.Tensor.register_hook.
#pragma once

#include <memory>

#include <halftone/autograd/node.h>

namespace halftone {

/// Names a registered hook. A copy names the same one; it does not keep the tensor alive, and its
/// end removes nothing.
class HookHandle {
 public:
  HookHandle() = default;
  /// The hook is not called any more. Does nothing the second time, or if the tensor is gone.
  void remove();

 private:
  friend HookHandle register_hook(const Tensor& x, GradientHook hook);
  std::weak_ptr<AutogradMeta> leaf_;
  std::weak_ptr<Node> node_;
  uint64_t number_ = 0;
};

/// From the next backward() on, `hook` gets the gradient of x once per pass, summed over all uses
/// of x in it: for a leaf before it is added to grad(), for a computed tensor before it goes on to
/// its inputs. What it returns (of the same shape and dtype) takes the gradient's place; an
/// undefined tensor changes nothing. Several run in the order of their registration. Nothing is
/// recorded inside. Throws UsageError if x wants no gradient.
HookHandle register_hook(const Tensor& x, GradientHook hook);

}  // namespace halftone
