// A watcher that sees an update without rounding, next to the actual one
// (policy/telemetry/update_probe.h). Optimizers of this folder ask whether there is a watcher;
// without one this costs nothing more.
#pragma once

#include <string_view>

#include <halftone/core/language.h>
#include <halftone/core/tensor.h>

namespace halftone {
struct Quantizer;   // core/formats/quantizer.h
struct UpdateSlot;  // core/backend.h
}  // namespace halftone

namespace halftone::optim {

class UpdateWatcher {
 public:
  /// Returns whether to report the updates that follow. Then each is computed twice.
  virtual bool wants() const = 0;
  /// Returns the weight of a slot, for any weight form: a new tensor, f32 (f64).
  virtual Tensor weight_of(const UpdateSlot& slot) = 0;
  /// Reports a slot before its update, its weight, and the new weight without rounding: f32 (f64).
  virtual void updating(const UpdateSlot& slot, const Tensor& weight, const Tensor& unrounded) = 0;
  /// Called after updates: a tensor that they wrote will be rounded to a grid. `state` is its name
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

/// Makes `watcher` watch the optimizers of this thread until the scope ends.
}  // namespace halftone::optim
