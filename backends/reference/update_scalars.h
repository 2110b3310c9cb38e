// What an optimizer update reads beside its slots' tensors: scalars that may lie on the device,
// here the host. Shared by the reference and the CPU backend, so that both skip and count alike.
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
/// The updates a slot has done.
inline int64_t steps_before(const UpdateSlot& slot, const UpdateCall& call) {
  return slot.steps.defined() ? *slot.steps.data<int64_t>() : call.steps;
}
inline void count_update(const UpdateSlot& slot) {
  if (slot.steps.defined()) ++*slot.steps.data<int64_t>();
}

}  // namespace halftone::reference
