// What an optimizer update reads beside its slots' tensors: scalars that may lie on the device,
// here the host. Shared by the reference and the CPU backend, so that both skip and count alike.
#pragma once

#include <cmath>
#include <utility>

#include <halftone/core/backend.h>

namespace halftone::reference {

/// NaN counts as not 0.
template <class Update> bool skips(const Update& update) {
  return update.skip.defined() && *update.skip.template data<float>() != 0;
}
template <class Update> double rate_of(const Update& update) {
  return update.device_lr.defined() ? *update.device_lr.template data<double>() : update.lr;
}
/// The updates a slot has done; `otherwise` where it does not count itself.
inline int64_t steps_before(const UpdateSlot& slot, int64_t otherwise) {
  return slot.steps.defined() ? *slot.steps.data<int64_t>() : otherwise;
}
inline void count_update(const UpdateSlot& slot) {
  if (slot.steps.defined()) ++*slot.steps.data<int64_t>();
}
/// 1 - beta^t of step t, the first being 1.
inline std::pair<double, double> bias_corrections(const AdamUpdate& update, int64_t steps) {
  const auto t = double(steps + 1);
  return {1 - std::pow(update.beta1, t), 1 - std::pow(update.beta2, t)};
}

}  // namespace halftone::reference
