// Loss scaling multiplies the loss by a factor that lifts small gradients into f16's range, and
// divides gradients by it before the update. A step whose gradients overflowed is skipped and
// lowers the factor. bf16 has f32's range and needs no loss scaling.
//
//   scaler.scale(loss).backward();
//   scaler.unscale(optimizer);                 // only to look at or clip the gradients
//   clip_grad_norm(model.parameters(), 1.0);
//   scaler.step(optimizer);
//   scaler.update();                           // once per step, also with several micro-batches
//
// Methods, states and errors are those of torch.amp.GradScaler. The scale and the results of checks
// are in device memory: only the methods that say so wait for a GPU.
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
  int losses = 1;       // each has its own scale, as with apex's num_losses; see collect()
  Decision decision = Decision::where_free;
};

class GradScaler {
 public:
  explicit GradScaler(const LossScaleOptions& options = {}, ScalerUse use = {});

  /// Returns the loss times the scale, recorded, at least in f32. `which` selects the scale of one
  /// of several losses. The scale moves to the device of the loss.
  Tensor scale(const Tensor& loss, int which = 0);
  std::vector<Tensor> scale(const std::vector<Tensor>& losses);

  /// Checks the optimizer's gradients for infinities and NaN, and divides them by the scale in
  /// place. Throws UsageError if called twice before update(), or after step(), or for f16
  /// gradients, which would underflow again. Waits if the gradients are on several devices.
  void unscale(optim::Optimizer& optimizer);
  /// Updates the weights unless a gradient overflowed; the result tells whether it did. Without
  /// unscale(), gradients are checked here and divided inside the update, and do not change.
  /// Throws UsageError if called twice before update(), or if the optimizer has no gradients. Waits
  /// if the optimizer cannot decide in its update.
  Stepped step(optim::Optimizer& optimizer);
  /// Changes the scale according to the checks of the optimizers' gradients, or to `new_scale`.
  void update(std::optional<double> new_scale = {});

  /// For several losses with a scale each, to be called after each backward(): checks and unscales
  /// the gradients, and moves them to an f32 sum, which step() then uses.
  void collect(optim::Optimizer& optimizer, int which);
  /// Converts gradients that were computed with the scale `made_with`, an f32 scalar, to the
  /// present scale, before further gradients are added to them.
  void rescale(optim::Optimizer& optimizer, const Tensor& made_with);

  bool enabled() const { return use_.enabled; }
  Decision decision() const { return use_.decision; }
  /// Returns the present scale; 1 if disabled. Waits for a GPU.
  double scale_value(int which = 0) const;
  /// Returns the same as an f32 scalar on the device, without waiting. The tensor never changes:
  /// update() makes another one.
  const Tensor& scale_tensor(int which = 0) { return scales_[checked(which)].present(); }
  /// Returns scale and trackers. Waits for a GPU.
  LossScale loss_scale(int which = 0) const { return scales_[checked(which)].read(); }
  /// Checks and changes the options, but not the scale and the tracker. Waits for a GPU.
  void set_options(const LossScaleOptions& options);

  /// Returns the position in the optimizer's gradients() of the first gradient that overflowed in
  /// its last check; empty after update(). On a GPU it waits and checks the gradients that still
  /// exist.
  std::optional<std::size_t> first_overflow(const optim::Optimizer& optimizer) const;

  /// For callers that check gradients themselves (a fused norm): takes the result, an f32 scalar
  /// that is not 0 after an overflow, instead of a check. Throws UsageError after unscale(): the
  /// gradients are divided already.
  void report(const optim::Optimizer& optimizer, const Tensor& found_inf);

  /// For optimizers whose parameters are sharded over processes: each check calls `agree` with its
  /// result on this process, an f32 scalar. `agree` replaces it by the result over all processes.
  void set_agreement(std::function<void(Tensor& found_inf)> agree) { agree_ = std::move(agree); }

  /// Returns PyTorch's five keys: scale, growth_factor, backoff_factor, growth_interval and
  /// _growth_tracker. Keys of further losses end in ".1", ".2", ...; _hysteresis exists if it is
  /// used. Empty if disabled. Waits for a GPU.
  optim::NamedTensors state_dict() const;
  /// Throws UsageError for missing, unknown or invalid entries, and then changes nothing.
  void load_state_dict(const optim::NamedTensors& state);

 private:
  enum class Stage { ready, unscaled, stepped };
  struct Progress {
    Stage stage = Stage::ready;
    Tensor
        found_inf{};  // f32 scalar, not 0 if a gradient overflowed; undefined: nothing was checked
    std::optional<std::size_t> first_overflow{};  // if the host knows it
    std::vector<Tensor> collected{};              // per parameter, f32
  };

  std::size_t checked(int which) const;
  void require_scaled(std::string_view verb) const;
  /// Returns 1 / scale, rounded once.
  Tensor inverse_scale(Device device, int which = 0);
  /// Checks gradients, and multiplies them by `factor` if it is defined. Adds to `found_inf`.
  void check(std::vector<Tensor>& gradients, const Tensor& factor, Tensor& found_inf) const;
  void agree(Tensor& found_inf) const {
    if (agree_) agree_(found_inf);
  }
  /// Stores the first overflow if the host can read it without waiting, while gradients exist.
  void note_first_overflow(std::span<const Tensor> gradients, Progress& progress) const;
  Tensor overflow_of(std::size_t loss, const Tensor& any) const;

  ScalerUse use_;
  std::function<void(Tensor&)> agree_{};
  bool scaled_ = false;
  std::vector<DeviceLossScale> scales_;
  std::vector<Tensor> overflowed_;  // per loss, since update(), if collect() is used
  std::map<const optim::Optimizer*, Progress> progress_;
};

}  // namespace halftone::amp
