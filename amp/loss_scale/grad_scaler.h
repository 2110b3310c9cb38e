// Loss scaling: the loss is multiplied by a factor that lifts small gradients into f16's range, and
// gradients are divided by it before the update; a step whose gradients overflowed is skipped and
// lowers the factor. bf16 has f32's range and needs none of it.
//
//   scaler.scale(loss).backward();
//   scaler.unscale(optimizer);                 // only to look at or clip the gradients
//   clip_grad_norm(model.parameters(), 1.0);
//   scaler.step(optimizer);
//   scaler.update();                           // once per step, also with several micro-batches
//
// Verbs, states and errors are those of torch.amp.GradScaler. The scale and what the checks find
// lie on the device: no verb waits for a GPU, but for what says so.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <vector>

#include <halftone/amp/loss_scale/device_loss_scale.h>
#include <halftone/amp/loss_scale/stepped.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

struct ScalerUse {
  bool enabled = true;  // false: everything passes through
  int losses = 1;       // a scale for each, as apex's num_losses; see collect()
  Decision decision = Decision::where_free;
};

class GradScaler {
 public:
  explicit GradScaler(const LossScaleOptions& options = {}, ScalerUse use = {});

  /// The loss times the scale, recorded, at least in f32. Which loss, if there are several scales.
  /// The first loss takes the scale to its device.
  Tensor scale(const Tensor& loss, int which = 0);
  std::vector<Tensor> scale(const std::vector<Tensor>& losses);

  /// Checks the optimizer's gradients for infinities and NaN and divides them by the scale, in
  /// place. Throws UsageError if called twice before update(), or after step(), or for f16
  /// gradients, which would underflow again. Waits if the gradients are on several devices.
  void unscale(optim::Optimizer& optimizer);
  /// Steps unless a gradient overflowed; returns whether it did, when asked. Gradients that
  /// unscale() has not seen are checked here and divided inside the update: they stay as they are.
  /// Throws UsageError if called twice before update(), or if there are no gradients. Waits if the
  /// optimizer cannot decide in its update.
  Stepped step(optim::Optimizer& optimizer);
  /// Moves the scale, by what the optimizers' checks found, or to `new_scale`.
  void update(std::optional<double> new_scale = {});

  /// For several losses with a scale each, after each backward(): checks and unscales what it left
  /// in the gradients and puts that aside, as f32; step() then uses the sum.
  void collect(optim::Optimizer& optimizer, int which);
  /// Brings gradients that were made under another scale, an f32 scalar, to the present one, before
  /// more are accumulated onto them.
  void rescale(optim::Optimizer& optimizer, const Tensor& made_with);

  bool enabled() const { return use_.enabled; }
  Decision decision() const { return use_.decision; }
  /// The present scale; 1 if disabled. Waits for a GPU.
  double scale_value(int which = 0) const;
  /// The same as an f32 scalar on the device, without waiting. The tensor never changes: after
  /// update() it is another one.
  const Tensor& scale_tensor(int which = 0) { return scales_[checked(which)].present(); }
  /// Scale and trackers. Waits for a GPU.
  LossScale loss_scale(int which = 0) const { return scales_[checked(which)].read(); }
  /// Changes the rules, checked; the scale and the tracker stay. Waits for a GPU.
  void set_options(const LossScaleOptions& options);

  /// What the last check of this optimizer found, until update(): the position in its gradients()
  /// of the first one that overflowed. On a GPU it waits and looks at them, as far as they are
  /// still there.
  std::optional<std::size_t> first_overflow(const optim::Optimizer& optimizer) const;

  /// For callers that check by themselves (a fused norm): takes the result, an f32 scalar that is
  /// not 0 after an overflow, in place of a check. Throws UsageError if unscale() has been called:
  /// their gradients are divided already.
  void report(const optim::Optimizer& optimizer, const Tensor& found_inf);

  /// For optimizers that are shared out among processes: called with what a check has found on this
  /// one, an f32 scalar, to put what any of them has found in its place.
  void set_agreement(std::function<void(Tensor& found_inf)> agree) { agree_ = std::move(agree); }

  /// PyTorch's five keys: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker
  /// (of further losses with ".1", ".2", ... behind them, and _hysteresis where it is used). Empty
  /// if disabled. Waits for a GPU.
  optim::NamedTensors state_dict() const;
  /// Throws UsageError for missing, unknown or senseless entries; then nothing has changed.
  void load_state_dict(const optim::NamedTensors& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct Progress {
    Stage stage = Stage::ready;
    Tensor
        found_inf{};  // f32 scalar, not 0 if a gradient overflowed; undefined: nothing was checked
    std::optional<std::size_t> first_overflow{};  // where the host knows
    std::vector<Tensor> collected{};              // per parameter, f32
  };

  std::size_t checked(int which) const;
  void require_scaled(std::string_view verb) const;
  /// 1 / scale, rounded once.
  Tensor inverse_scale(Device device, int which = 0);
  /// Checks gradients, which are multiplied by `factor` if it is defined; adds to what was found.
  void check(std::vector<Tensor>& gradients, const Tensor& factor, Tensor& found_inf) const;
  void agree(Tensor& found_inf) const {
    if (agree_) agree_(found_inf);
  }
  /// Where the host may look for free, it does so while the gradients are there.
  void note_first_overflow(std::span<const Tensor> gradients, Progress& progress) const;
  Tensor overflow_of(std::size_t loss, const Tensor& any) const;

  ScalerUse use_;
  std::function<void(Tensor&)> agree_{};
  bool scaled_ = false;
  std::vector<DeviceLossScale> scales_;
  std::vector<Tensor> overflowed_;  // per loss, since update(), where collect() is used
  std::map<const optim::Optimizer*, Progress> progress_;
};

}  // namespace halftone::amp
