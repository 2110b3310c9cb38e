// Who sees what an update would make of a weight if nothing were rounded, beside what it does
// (policy/telemetry/update_probe.h). Optimizers of this folder ask; where nobody watches that is all.
#pragma once

#include <string_view>
#include <utility>

#include <halftone/core/tensor.h>

namespace halftone {
struct Quantizer;   // core/quantizer.h
struct UpdateSlot;  // core/backend.h
}  // namespace halftone

namespace halftone::optim {

class UpdateWatcher {
 public:
  /// Whether to be shown the updates that are about to happen. Then each is computed twice.
  virtual bool wants() const = 0;
  /// The weight that a slot stands for, in whatever form it is kept: a new tensor, f32 (f64).
  virtual Tensor weight_of(const UpdateSlot& slot) = 0;
  /// A slot before its update, its weight, and what that becomes without rounding: f32 (f64).
  virtual void updating(const UpdateSlot& slot, const Tensor& weight, const Tensor& unrounded) = 0;
  /// After updates: a tensor that they wrote is about to go onto a grid. `state` is its name
  /// ("exp_avg"), or empty for a parameter.
  virtual void rounding(std::string_view state, const Tensor& x, const Quantizer& quantizer) = 0;

 protected:
  ~UpdateWatcher() = default;
};

namespace detail {
inline thread_local UpdateWatcher* update_watcher = nullptr;
}
/// Whoever of this thread wants to see the updates that happen now; null: nobody.
inline UpdateWatcher* watcher_of_updates() {
  UpdateWatcher* const watcher = detail::update_watcher;
  return watcher && watcher->wants() ? watcher : nullptr;
}

/// Until the scope ends, `watcher` watches the optimizers of this thread.
class UpdateWatch {
 public:
  [[nodiscard]] explicit UpdateWatch(UpdateWatcher* watcher)
      : before_(std::exchange(detail::update_watcher, watcher)) {}
  ~UpdateWatch() { detail::update_watcher = before_; }
  UpdateWatch(const UpdateWatch&) = delete;
  UpdateWatch& operator=(const UpdateWatch&) = delete;

 private:
  UpdateWatcher* before_;
};

}  // namespace halftone::optim
