// Told during backward() of every leaf that a gradient reaches, also in the nested passes of
// checkpointed segments.
#pragma once

#include <functional>
#include <utility>

#include <halftone/autograd/node.h>

namespace halftone {

using LeafWatcher = std::function<void(const AutogradMeta& leaf, const Edge& edge)>;

namespace detail {
inline thread_local const LeafWatcher* leaf_watcher = nullptr;
}

/// Until the scope ends, `watcher` is told in this thread; before the gradient is added, and once
/// for each use of the leaf.
class LeafWatch {
 public:
  [[nodiscard]] explicit LeafWatch(LeafWatcher watcher)
      : watcher_(std::move(watcher)), before_(std::exchange(detail::leaf_watcher, &watcher_)) {}
  ~LeafWatch() { detail::leaf_watcher = before_; }
  LeafWatch(const LeafWatch&) = delete;
  LeafWatch& operator=(const LeafWatch&) = delete;

 private:
  LeafWatcher watcher_;
  const LeafWatcher* before_;
};

}  // namespace halftone
