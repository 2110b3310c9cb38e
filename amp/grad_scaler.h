// Loss scaling: the scale on a device, whether a step was taken, and GradScaler.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <halftone/core/loss_scale.h>
#include <halftone/core/tensor.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

// A loss scale whose state is in device memory, so that a step changes it without the host. The
// rule is that of core/loss_scale.h, as Backend::next_loss_scale. A value: copies are independent.

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
  /// Replaces the options, not scale and growth tracker. A new hysteresis restarts its count.
  void set_options(const LossScaleOptions& options);
  /// Moves the state to `device` and waits for the copy; does nothing if it is there already.
  void move_to(Device device);

  /// Returns the present scale, f32 scalar. The returned tensor never changes: after a change of
  /// the scale, present() returns another tensor.
  const Tensor& present();
  /// Updates the scale after a step. `found_inf`, an f32 scalar on any device, is not 0 if the
  /// step overflowed.
  void next(const Tensor& found_inf);
  void set(double scale);

  /// read() copies the state to the host, and waits for the device. write() replaces it in place.
  LossScale read() const;
  void write(const LossScale& values);

 private:
  LossScaleOptions options_;
  Tensor scale_, growth_tracker_, overflows_left_;  // f32, i64, i32 scalars
  Tensor present_{};                                // a copy of scale_ ...
  uint64_t present_version_ = 0;                    // ... as of this version
};

// Whether a step was taken. On a GPU the update itself decides whether the gradients overflowed.
// The answer stays on the device until the program asks for it, so that the host does not wait
// in each step.
//
//   training.step();                           // waits for nothing
//   if (training.step()) schedule.step();      // on a GPU, waits

class Stepped {
 public:
  /// Makes a known answer.
  explicit Stepped(bool stepped) : stepped_(stepped) {}
  /// Makes an answer in device memory: `skip` is an f32 scalar, not 0 if the step was skipped.
  explicit Stepped(Tensor skip) : skip_(std::move(skip)) {}

  /// Returns whether the weights were updated. The first call reads the device.
  operator bool() const {
    if (skip_.defined()) stepped_ = skip_.item() == 0, skip_ = {};
    return stepped_;
  }
  /// Returns whether the host has the answer, so that reading it does not wait.
  bool known() const { return !skip_.defined(); }
  /// Returns the scalar that the answer will be read from; undefined if the answer is known.
  const Tensor& skip() const { return skip_; }

 private:
  mutable Tensor skip_{};
  mutable bool stepped_ = true;
};

/// Where the decision to skip a step is made.
enum class Decision {
  where_free,  // on the CPU by the host, since reading costs nothing; on a GPU by the update
  in_update,   // by the update, also on the CPU, as on a GPU; for tests
};

/// Returns whether the host decides: `decision` permits it, and it can read `flag` without waiting.
bool host_decides(Decision decision, const Tensor& flag);

/// Steps the optimizer unless control.skip is not 0, and returns whether it did. If the host
/// decides, it does not call the optimizer for a skipped step; otherwise the update decides.
Stepped step(optim::Optimizer& optimizer, const optim::StepControl& control,
             Decision decision = Decision::where_free);

/// Returns the position of the first gradient with an infinity or NaN, among the defined gradients.
/// Reads from the device, gradient by gradient.
std::optional<std::size_t> first_not_finite(std::span<const Tensor> gradients);

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

struct ScalerUse {
  bool enabled = true;  // false: everything passes through
  int losses = 1;       // each has its own scale, as with apex's num_losses; see collect()
  Decision decision = Decision::where_free;
};

class GradScaler {
 public:
  explicit GradScaler(const LossScaleOptions& options = {}, ScalerUse use = {});

  /// Returns the loss times the scale, at least in f32; autograd records the product. `which`
  /// selects the scale of one of several losses. The scale moves to the device of the loss.
  Tensor scale(const Tensor& loss, int which = 0);
  std::vector<Tensor> scale(const std::vector<Tensor>& losses);

  /// Checks the optimizer's gradients for infinities and NaN, and divides them by the scale in
  /// place. Throws UsageError if it is called before scale(), twice before update(), or after
  /// step(). Throws UsageError for f16 gradients, which would underflow again. Waits if the
  /// gradients are on several devices.
  void unscale(optim::Optimizer& optimizer);
  /// Updates the weights unless a gradient overflowed; the result tells whether it did. Without
  /// unscale(), gradients are checked here and divided inside the update, and do not change. Throws
  /// UsageError if it is called before scale() or twice before update(), or if the optimizer has no
  /// gradients. Waits if the optimizer cannot decide in its update.
  Stepped step(optim::Optimizer& optimizer);
  /// Changes the scale according to the checks of the optimizers' gradients, or sets it to
  /// `new_scale`. Throws UsageError if no gradients were checked and there is no `new_scale`.
  void update(std::optional<double> new_scale = {});

  /// Call it after each backward() if several losses have a scale each. Checks and unscales the
  /// gradients of loss `which`, and moves them to an f32 sum, which step() then uses. Throws
  /// UsageError after unscale() or step().
  void collect(optim::Optimizer& optimizer, int which);
  /// Converts gradients that were computed with the scale `made_with`, an f32 scalar, to the
  /// present scale, before further gradients are added to them.
  void rescale(optim::Optimizer& optimizer, const Tensor& made_with);

  bool enabled() const { return use_.enabled; }
  Decision decision() const { return use_.decision; }
  /// Returns the present scale; 1 if disabled. Waits for a GPU.
  double scale_value(int which = 0) const;
  /// Returns the present scale as an f32 scalar on the device, without waiting. The tensor never
  /// changes: update() makes another one.
  const Tensor& scale_tensor(int which = 0) { return scales_[checked(which)].present(); }
  /// Returns scale and trackers. Waits for a GPU.
  LossScale loss_scale(int which = 0) const { return scales_[checked(which)].read(); }
  /// Checks and replaces the options. The scale and the growth tracker stay. Waits for a GPU.
  void set_options(const LossScaleOptions& options);

  /// Returns the position in the optimizer's gradients() of the first gradient that overflowed in
  /// its last check; empty after update(). On a GPU it waits and checks the gradients that still
  /// exist.
  std::optional<std::size_t> first_overflow(const optim::Optimizer& optimizer) const;

  /// For callers that check gradients themselves (a fused norm): records their result, an f32
  /// scalar that is not 0 after an overflow, for update(). step() checks as well. Throws UsageError
  /// after unscale(): the gradients are divided already.
  void report(const optim::Optimizer& optimizer, const Tensor& found_inf);

  /// For optimizers whose parameters are sharded over processes: each check calls `agree` with its
  /// result on this process, an f32 scalar. `agree` replaces it by the result over all processes.
  void set_agreement(std::function<void(Tensor& found_inf)> agree) { agree_ = std::move(agree); }

  /// Returns PyTorch's five keys: scale, growth_factor, backoff_factor, growth_interval and
  /// _growth_tracker. Keys of further losses end in ".1", ".2", ...; _hysteresis exists if
  /// hysteresis is used. Empty if disabled. Waits for a GPU.
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
