// A loss scale whose state is in device memory, so that a step changes it without the host. The
// rule is that of core/loss_scale.h, as Backend::next_loss_scale. A value: copies are independent.
#pragma once

#include <halftone/core/loss_scale.h>
#include <halftone/core/tensor.h>

namespace halftone::amp {

using halftone::HysteresisRule, halftone::LossScale, halftone::LossScaleOptions, halftone::next;

class DeviceLossScale {
 public:
  /// Starts on the CPU, at init_scale.
  explicit DeviceLossScale(const LossScaleOptions& options);
  DeviceLossScale(const DeviceLossScale& other);
  DeviceLossScale& operator=(const DeviceLossScale& other);
  DeviceLossScale(DeviceLossScale&&) = default;
  DeviceLossScale& operator=(DeviceLossScale&&) = default;
  ~DeviceLossScale() = default;

  const LossScaleOptions& options() const { return options_; }
  /// Does not change the scale and the growth tracker. A new hysteresis restarts its count.
  void set_options(const LossScaleOptions& options);
  /// Does nothing if the state is on `device` already; otherwise waits for the copy.
  void move_to(Device device);

  /// Returns the present scale, f32 scalar. The returned tensor never changes: after a change of
  /// the scale, present() returns another tensor.
  const Tensor& present();
  /// Updates the scale after a step. `found_inf`, an f32 scalar on any device, is not 0 if the
  /// step overflowed.
  void next(const Tensor& found_inf);
  void set(double scale);

  /// Copies the state to the host, and waits for the device. write() works in place.
  LossScale read() const;
  void write(const LossScale& values);

 private:
  LossScaleOptions options_;
  Tensor scale_, growth_tracker_, overflows_left_;  // f32, i64, i32 scalars
  Tensor present_{};                                // a copy of scale_ ...
  uint64_t present_version_ = 0;                    // ... as of this version
};

}  // namespace halftone::amp
