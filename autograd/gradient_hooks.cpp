// Hooks are stored at the objects that have the whole gradient: the leaf's record, or the node of a
// computed tensor.
#include <halftone/autograd/gradient_hooks.h>

#include <atomic>

namespace halftone {

HookHandle register_hook(const Tensor& x, GradientHook hook) {
  if (!x.requires_grad())
    fail<UsageError>("register_hook", "this tensor, ", described(x),
                     ", has no gradient. Call set_requires_grad() on it, or on a leaf that it is "
                     "computed from, first.");
  if (!hook) fail<UsageError>("register_hook", "the hook is empty. Pass a function.");
  static std::atomic<uint64_t> numbers = 0;
  HookHandle handle;
  handle.number_ = ++numbers;
  if (const std::shared_ptr<Node>& creator = x.meta()->creator) {
    handle.node_ = creator;
    creator->hooks.emplace_back(handle.number_, std::move(hook));
  } else {
    handle.leaf_ = x.meta();
    x.meta()->hooks.emplace_back(handle.number_, std::move(hook));
  }
  return handle;
}

void HookHandle::remove() {
  const auto drop = [this](GradientHooks& hooks) {
    std::erase_if(hooks, [this](const auto& entry) { return entry.first == number_; });
  };
  if (const std::shared_ptr<AutogradMeta> leaf = leaf_.lock()) drop(leaf->hooks);
  if (const std::shared_ptr<Node> node = node_.lock()) drop(node->hooks);
}

}  // namespace halftone
