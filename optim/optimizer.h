// The interface of an optimizer for the rest of the system, and what is done to gradients before a
// step.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <halftone/core/backend.h>
#include <halftone/core/language.h>
#include <halftone/core/named_tensors.h>
#include <halftone/core/tensor.h>

namespace halftone {

// A watcher that sees an update without rounding, next to the actual one (amp/probe.h). Optimizers
// of this folder ask whether there is a watcher; without one this costs nothing more.

struct Quantizer;   // core/formats/quantizer.h
struct UpdateSlot;  // core/backend.h
}  // namespace halftone

namespace halftone::optim {

class UpdateWatcher {
 public:
  /// Returns whether to report the next updates; each of these is then computed twice.
  virtual bool wants() const = 0;
  /// Returns the weight of a slot, for any weight form: a new tensor, f32 (f64).
  virtual Tensor weight_of(const UpdateSlot& slot) = 0;
  /// Reports a slot before its update, its weight, and its new weight before rounding: f32 (f64).
  virtual void updating(const UpdateSlot& slot, const Tensor& weight, const Tensor& unrounded) = 0;
  /// Called after updates: a tensor that they wrote will be rounded to a grid. `state` is its name
  /// ("exp_avg"), or empty for a parameter.
  virtual void rounding(std::string_view state, const Tensor& x, const Quantizer& quantizer) = 0;

 protected:
  ~UpdateWatcher() = default;
};

using UpdateWatchSlot = Slot<UpdateWatcher*>;
/// Makes a watcher watch the optimizers of this thread until the scope ends.
using UpdateWatch = UpdateWatchSlot::Scope;

/// Returns the watcher of this thread if it wants the next updates, otherwise null.
inline UpdateWatcher* watcher_of_updates() {
  UpdateWatcher* const watcher = UpdateWatchSlot::current();
  return watcher && watcher->wants() ? watcher : nullptr;
}

// Lists of gradients, possibly on several devices: shared by scalers, clipping and norms.

/// Calls use(gradients, backend) for each run of consecutive gradients on one device: nearly always
/// one run. The order does not change, because positions of gradients refer to it.
template <class T, class Use> void for_each_device(std::span<T> gradients, const Use& use) {
  for (auto begin = gradients.begin(); begin != gradients.end();) {
    const Device device = begin->device();
    auto end = begin;
    while (end != gradients.end() && end->device() == device) ++end;
    use(std::span<T>(begin, end), backend_for(device));
    begin = end;
  }
}

/// Multiplies each gradient by `factor`, an f32 scalar that may be on another device.
void scale_gradients(std::span<Tensor> gradients, const Tensor& factor);

/// Returns the p-norm of all gradients as one vector, accumulated in f64: an f64 scalar on the
/// device of the first gradient; 0 for an empty list. Throws UsageError for p that is not positive.
Tensor norm_of(std::span<const Tensor> gradients, double p = 2);

}  // namespace halftone::optim

// The interface of an optimizer for the rest of the system: gradient scalers, clipping, schedules
// and wrappers (master weights) use this class only, so that every combination works. Optimizers
// that own their update derive from GroupedOptimizer (optim/grouped_optimizer.h). Mirrors
// torch.optim.Optimizer.

namespace halftone {
struct UpdateSlot;  // core/backend.h
}

namespace halftone::optim {

using halftone::NamedTensors;

/// How a precision strategy (amp/) takes part in a step. It stores the part of a weight that a
/// short parameter cannot hold (f32 masters, remainders, compensation), and may collect gradients
/// of its own. Without a keeper, parameters are updated directly.
class WeightKeeper {
 public:
  virtual ~WeightKeeper() = default;
  /// Returns the gradient of a parameter, `index` counted over all groups; undefined: no update.
  virtual Tensor gradient(std::size_t index, const Tensor& parameter) const = 0;
  /// Adds form, companion and random key to the UpdateSlot that the backend will update.
  virtual void complete(std::size_t index, UpdateSlot& slot) = 0;
};

/// How optimizer state is stored: in a dtype (f32, bf16, f16, f64), or in 8 or 4 bits by a form
/// (core/formats/coded_form.h). A form applies to f32 and shorter parameters of at least 4,096
/// elements without gaps; the state of smaller ones is f32, as bitsandbytes keeps it.
struct StateFormat {
  DType dtype = f32;
  CodedForm form = CodedForm::plain;

  StateFormat() = default;
  StateFormat(DType of) : dtype(of) {}             // NOLINT: a dtype is a format
  StateFormat(CodedForm stored) : form(stored) {}  // NOLINT: and so is a form
  bool operator==(const StateFormat&) const = default;
  bool coded() const { return form != CodedForm::plain; }
};
/// Prints "bf16" or "8bit".
std::ostream& operator<<(std::ostream& out, StateFormat format);
/// Returns all formats with their names in policy files.
std::span<const std::pair<std::string_view, StateFormat>> named_state_formats();

/// Formats of optimizer states: `by_name` ("exp_avg_sq") overrides the optimizer's options, and
/// `others` is for states that neither sets (absent: f32).
struct StateFormats {
  std::optional<StateFormat> others{};
  std::map<std::string, StateFormat> by_name{};
};

/// The requests of a precision strategy to a step. Each scalar is f32, on any device, or undefined.
struct StepControl {
  /// Every gradient is multiplied by it first: 1 / loss scale, clipping.
  Tensor factor{};
  /// If it is not 0, the step changes nothing.
  Tensor skip{};
  /// The caller has handled the loss scale of the gradients. If false, and without the two scalars,
  /// the step refuses gradients of a scaled loss.
  bool knows_scale = false;
};

class Optimizer {
 public:
  Optimizer() = default;
  Optimizer(Optimizer&&) = default;
  Optimizer& operator=(Optimizer&&) = default;
  virtual ~Optimizer() = default;
  /// Returns the name of the class for users, "AdamW": for messages and records. "Optimizer" for a
  /// user's optimizer without a name.
  virtual std::string_view name() const { return "Optimizer"; }

  /// Updates every parameter that has a gradient, as `control` says. Throws UsageError for
  /// gradients of a loss that a GradScaler scaled, unless they were unscaled or `control` says how.
  /// Optimizers of this folder do not write the gradients and pass `skip` on to the update, so the
  /// host does not wait. An optimizer without support for `control` begins with `if
  /// (!begin_step(control)) return;`.
  virtual void step(const StepControl& control = {}) = 0;
  /// Copies the rates and step counts that steps read from the host to the device, for captured
  /// steps. Call it before a capture, and before a replay if a rate was changed by options()
  /// (set_lr() calls it by itself). After load_state_dict(), capture again.
  virtual void publish_rates() {}
  /// Sets the keeper of the weights (null: none). Returns false if this optimizer does not support
  /// one, because it does not update through the backend.
  virtual bool set_weight_keeper(std::shared_ptr<WeightKeeper> keeper);
  /// Sets the formats of optimizer state, from the first step on. Returns false if this optimizer
  /// has no such choice. Throws UsageError for a name in by_name that its state lacks (with
  /// `others`: that no optimizer's state has), and DTypeError for a format that the state cannot
  /// have.
  virtual bool set_state_formats(const StateFormats& formats);
  /// Returns whether the update of an element depends only on that element, its gradient and its
  /// state: then a parameter may be updated in parts, which are 1-D views of its data.
  virtual bool elementwise() const { return false; }
  /// Drops the gradients or, if set_to_none is false, writes zeros into them.
  virtual void zero_grad(bool set_to_none = true);
  /// Returns the gradients that the next step will read: those to unscale and to clip. A wrapper
  /// may have its own.
  virtual std::vector<Tensor> gradients() const;

  // --- groups: parameters that share their options
  virtual int group_count() const = 0;
  /// Returns the group's parameters, as handles, in the order of state_dict(). A wrapper may return
  /// other tensors of the same shapes instead.
  virtual std::span<Tensor> group_parameters(int group) = 0;
  virtual double lr(int group) const = 0;
  /// Returns the bytes of the state of `elements` elements of `parameter`, as if it had dtype
  /// `dtype`: for Adam in f32, 8 per element. Only elementwise optimizers take fewer than all
  /// elements. `formats`: as for set_state_formats().
  virtual int64_t state_bytes(int /*group*/, const Tensor& /*parameter*/, DType /*dtype*/,
                              int64_t /*elements*/, const StateFormats& /*formats*/) const {
    return 0;
  }
  virtual void set_lr(double lr, int group) = 0;

  /// Returns the parameters of all groups.
  std::vector<Tensor> parameters() const;
  /// Returns the rate of the first group.
  double lr() const { return lr(0); }
  /// Sets the rate of all groups.
  void set_lr(double lr);

  /// Returns the state. Names as in PyTorch: state.0.exp_avg, state.0.step, param_groups.0.lr, ...
  /// Tensors are handles, not copies.
  virtual NamedTensors state_dict() const = 0;
  /// Copies the state, in the given dtypes: optimizer state is never cast to the parameter's dtype.
  /// Throws one UsageError that lists everything that does not fit; then nothing has changed.
  virtual void load_state_dict(const NamedTensors& state) = 0;

 protected:
  /// Reads `skip`, which may wait for the device. Returns false if it is not 0. Otherwise
  /// multiplies the gradients by the factor, in place.
  bool begin_step(const StepControl& control) const;
  /// Throws UsageError, with this name, if a gradient is of a scaled loss and `control` does not
  /// handle it. A step() that does not call begin_step() begins with it.
  void require_unscaled(std::string_view name, const StepControl& control) const;
};

/// Throws UsageError in the name of an optimizer, because this parameter's gradient is of a scaled
/// loss.
[[noreturn]] void refuse_scaled_gradient(std::string_view name, std::size_t index,
                                         const Tensor& parameter);
/// Returns the gradients of the parameters that have one.
std::vector<Tensor> gradients_of(std::span<const Tensor> parameters);

// Clipping of gradients, between unscaling and the optimizer step. Mirrors
// torch.nn.utils.clip_grad_norm_ and clip_grad_value_ (Pascanu et al. 2013). Norms and factors are
// f32 for any dtype of gradients. For an optimizer with gradients of its own (master weights), pass
// optimizer.gradients() to the functions that take gradients.

struct ClipOptions {
  /// The p of the norm, which is the p-th root of the sum of all |g|^p: any positive number, or
  /// infinity for the largest |g|. Values other than 2 take several passes.
  double norm_type = 2;
  bool error_if_nonfinite = false;  // UsageError for such a norm; waits for a GPU
};

/// Scales all gradients by min(1, max_norm / (norm + 1e-6)); norm is the Euclidean norm, or another
/// p-norm, of all gradients as one vector. Returns that norm, an f32 scalar on the gradients'
/// device, without waiting for it. Returns 0 without gradients.
Tensor clip_grad_norm(const std::vector<Tensor>& parameters, double max_norm,
                      ClipOptions options = {});
Tensor clip_gradients_norm(std::span<Tensor> gradients, double max_norm, ClipOptions options = {});

/// Limits every element of every gradient to [-limit, limit].
void clip_grad_value(const std::vector<Tensor>& parameters, double limit);
void clip_gradients_value(std::span<Tensor> gradients, double limit);

}  // namespace halftone::optim
