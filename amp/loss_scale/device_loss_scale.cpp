// A loss scale is three scalars, which the backend updates.
#include <halftone/amp/loss_scale/device_loss_scale.h>

#include <halftone/core/backend.h>
#include <halftone/core/captured_step.h>
#include <halftone/core/factory.h>

namespace halftone::amp {

DeviceLossScale::DeviceLossScale(const LossScaleOptions& options) : options_(options) {
  const MemoryScope scope(MemoryUse::workspace);
  const LossScale initial{.options = options};
  scale_ = scalar(double(initial.scale), f32);
  growth_tracker_ = scalar(double(initial.growth_tracker), i64);
  overflows_left_ = scalar(double(initial.overflows_left), i32);
}

DeviceLossScale::DeviceLossScale(const DeviceLossScale& other) : options_(other.options_) {
  const MemoryScope scope(MemoryUse::workspace);
  scale_ = other.scale_.clone(), growth_tracker_ = other.growth_tracker_.clone();
  overflows_left_ = other.overflows_left_.clone();
}

DeviceLossScale& DeviceLossScale::operator=(const DeviceLossScale& other) {
  return *this = DeviceLossScale(other);
}

void DeviceLossScale::set_options(const LossScaleOptions& options) {
  if (options_.hysteresis != options.hysteresis) fill_with(overflows_left_, options.hysteresis);
  options_ = options;
}

void DeviceLossScale::move_to(Device device) {
  if (scale_.device() == device) return;
  const MemoryScope scope(MemoryUse::workspace);
  for (Tensor* x : {&scale_, &growth_tracker_, &overflows_left_}) *x = x->to(device);
  present_ = {};
}

const Tensor& DeviceLossScale::present() {
  // A copy is valid either inside the capture that made it or outside of captures: a replay has
  // another scale.
  const uint64_t version =
      2 * scale_.storage()->version() + (backend_for(scale_).capturing() ? 1 : 0);
  if (present_.defined() && present_version_ == version) return present_;
  const MemoryScope scope(MemoryUse::workspace);
  present_ = scale_.clone(), present_version_ = version;
  return present_;
}

void DeviceLossScale::next(const Tensor& found_inf) {
  backend_for(scale_).next_loss_scale(options_, found_inf.to(scale_.device()), scale_,
                                      growth_tracker_, overflows_left_);
  if (recording_step())
    repeat_on_replay([scale = scale_] { mark_written(scale); });  // for present()
}

void DeviceLossScale::set(double scale) { fill_with(scale_, scale); }

LossScale DeviceLossScale::read() const {
  return {.options = options_,
          .scale = float(scale_.item()),
          .growth_tracker = int64_t(growth_tracker_.item()),
          .overflows_left = int(overflows_left_.item())};
}

void DeviceLossScale::write(const LossScale& values) {
  options_ = values.options;
  fill_with(scale_, double(values.scale));
  fill_with(growth_tracker_, double(values.growth_tracker));
  fill_with(overflows_left_, double(values.overflows_left));
}

}  // namespace halftone::amp
