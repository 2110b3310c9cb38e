// A watch that backward() informs of every leaf that a gradient reaches, also in the nested passes
// of checkpointed segments.
#pragma once

#include <functional>
#include <utility>

#include <halftone/autograd/node.h>
#include <halftone/core/language.h>

namespace halftone {

using LeafWatcher = std::function<void(const AutogradMeta& leaf, const Edge& edge)>;

using LeafWatchSlot = Slot<const LeafWatcher*>;

class LeafWatch {
 public:
  [[nodiscard]] explicit LeafWatch(LeafWatcher watcher)
      : watcher_(std::move(watcher)), scope_(&watcher_) {}

 private:
  LeafWatcher watcher_;
  LeafWatchSlot::Scope scope_;
};

}  // namespace halftone
