// The scalars that an optimizer update reads besides its slots' tensors. They may be on the device,
// which here is the host. The reference and the CPU backend share this code, so both skip and count
// in the same way.
#pragma once

#include <halftone/core/backend.h>

namespace halftone::reference {

/// NaN counts as not 0.
inline bool skips(const UpdateCall& call) {
  return call.skip.defined() && *call.skip.data<float>() != 0;
}
inline double rate_of(const UpdateCall& call) {
  return call.device_lr.defined() ? *call.device_lr.data<double>() : call.lr;
}
/// Returns the number of updates that a slot has had.
inline int64_t steps_before(const UpdateSlot& slot, const UpdateCall& call) {
  return slot.steps.defined() ? *slot.steps.data<int64_t>() : call.steps;
}
inline void count_update(const UpdateSlot& slot) {
  if (slot.steps.defined()) ++*slot.steps.data<int64_t>();
}

}  // namespace halftone::reference
