// Who sees what an update would make of a weight if nothing were rounded, beside what it does
// (policy/update_probe.h). Optimizers of this folder ask; where nobody watches that is all.
#pragma once

#include <utility>

#include <halftone/core/tensor.h>

namespace halftone {
struct UpdateSlot;  // core/backend.h
}

namespace halftone::optim {

class UpdateWatcher {
 public:
  /// Whether to be shown the updates that are about to happen. Then each is computed twice.
  virtual bool wants() const = 0;
  /// The weight that a slot stands for, in whatever form it is kept: a new tensor, f32 (f64).
  virtual Tensor weight_of(const UpdateSlot& slot) = 0;
  /// A slot before its update, its weight, and what that becomes without rounding: f32 (f64).
  virtual void updating(const UpdateSlot& slot, const Tensor& weight, const Tensor& unrounded) = 0;

 protected:
  ~UpdateWatcher() = default;
};

namespace detail {
inline thread_local UpdateWatcher* update_watcher = nullptr;
}

/// Until the scope ends, `watcher` watches the optimizers of this thread.
class UpdateWatch {
 public:
  explicit UpdateWatch(UpdateWatcher* watcher)
      : before_(std::exchange(detail::update_watcher, watcher)) {}
  ~UpdateWatch() { detail::update_watcher = before_; }
  UpdateWatch(const UpdateWatch&) = delete;
  UpdateWatch& operator=(const UpdateWatch&) = delete;

 private:
  UpdateWatcher* before_;
};

}  // namespace halftone::optim
