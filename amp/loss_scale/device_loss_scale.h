// A loss scale whose state lies on a device, so that a step moves it without telling the host:
// core/loss_scale.h in the backend, Backend::next_loss_scale. A value: copies are independent.
#pragma once

#include <halftone/core/loss_scale.h>
#include <halftone/core/tensor.h>

namespace halftone::amp {

class DeviceLossScale {
 public:
  /// On the CPU, at init_scale.
  explicit DeviceLossScale(const LossScaleOptions& options);
  DeviceLossScale(const DeviceLossScale& other);
  DeviceLossScale& operator=(const DeviceLossScale& other);
  DeviceLossScale(DeviceLossScale&&) = default;
  DeviceLossScale& operator=(DeviceLossScale&&) = default;
  ~DeviceLossScale() = default;

  const LossScaleOptions& options() const { return options_; }
  /// Scale and tracker stay; another hysteresis starts anew.
  void set_options(const LossScaleOptions& options);
  /// Does nothing if it is there; otherwise waits.
  void move_to(Device device);

  /// The present scale, f32 scalar. What is returned never changes: when the scale has moved, it is
  /// another tensor.
  const Tensor& present();
  /// After a step that overflowed where `found_inf`, an f32 scalar on any device, is other than 0.
  void next(const Tensor& found_inf);
  void set(double scale);

  /// What it holds, on the host: waits for the device. Writing is in place.
  LossScale read() const;
  void write(const LossScale& values);

 private:
  LossScaleOptions options_;
  Tensor scale_, growth_tracker_, overflows_left_;  // f32, i64, i32 scalars
  Tensor present_{};                                // a copy of scale_ ...
  uint64_t present_version_ = 0;                    // ... as of this version
};

}  // namespace halftone::amp
