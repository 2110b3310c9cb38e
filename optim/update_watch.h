// Who sees what an update would make of a weight if nothing were rounded, beside what it does
// (policy/telemetry/update_probe.h). Optimizers of this folder ask; where nobody watches that is
// all.
#pragma once

#include <string_view>

#include <halftone/core/tensor.h>
#include <halftone/core/thread_slot.h>

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

using UpdateWatchSlot = Slot<UpdateWatcher*>;
using UpdateWatch = UpdateWatchSlot::Scope;

inline UpdateWatcher* watcher_of_updates() {
  UpdateWatcher* const watcher = UpdateWatchSlot::current();
  return watcher && watcher->wants() ? watcher : nullptr;
}

/// Until the scope ends, `watcher` watches the optimizers of this thread.
}  // namespace halftone::optim
