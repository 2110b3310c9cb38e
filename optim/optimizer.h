// The interface of an optimizer for the rest of the system: gradient scalers, clipping, schedules
// and wrappers (master weights) use this class only, so that every combination works. Optimizers
// that own their update derive from GroupedOptimizer (optim/grouped_optimizer.h). Mirrors
// torch.optim.Optimizer.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/named_tensors.h>

namespace halftone {
struct UpdateSlot;  // core/backend.h
}

namespace halftone::optim {

using halftone::NamedTensors;

/// The slot of a precision strategy in a step. It stores the part of a weight that a short
/// parameter cannot hold (f32 masters, remainders, compensation), and may collect gradients of its
/// own. amp/ fills this slot; without it, parameters are updated directly.
class WeightKeeper {
 public:
  virtual ~WeightKeeper() = default;
  /// Returns the gradient of a parameter, `index` counted over all groups; undefined: leave it out.
  virtual Tensor gradient(std::size_t index, const Tensor& parameter) const = 0;
  /// Adds form, companion and random key to a slot that the backend will update.
  virtual void complete(std::size_t index, UpdateSlot& slot) = 0;
};

/// The requests of a precision strategy to a step: two f32 scalars, each of them undefined or on a
/// device.
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
  /// Sets the dtype of optimizer state that has no dtype option, from the first step on. Returns
  /// false if this optimizer has no such choice.
  virtual bool set_default_state_dtype(DType dtype);
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
  /// Returns handles in the order of state_dict(). A wrapper may return others of the same shapes
  /// instead.
  virtual std::span<Tensor> group_parameters(int group) = 0;
  virtual double lr(int group) const = 0;
  /// Returns the number of state tensors of its size for a parameter of a group: Adam 2.
  virtual int64_t state_tensors(int /*group*/, const Tensor& /*parameter*/) const { return 0; }
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
  /// Copies the state, in the given dtypes: optimizer state is never cast to the parameter's
  /// dtype. Throws one UsageError that lists everything that does not fit; then nothing has
  /// changed.
  virtual void load_state_dict(const NamedTensors& state) = 0;

 protected:
  /// Reads `skip`, which may wait for the device. Returns false if it is set. Otherwise multiplies
  /// the gradients by the factor, in place.
  bool begin_step(const StepControl& control) const;
  /// The same check, as the first line of step(): throws UsageError, with this name, if a gradient
  /// is of a scaled loss and `control` does not handle it.
  void require_unscaled(std::string_view name, const StepControl& control) const;
};

/// Throws UsageError, with the name of an optimizer: the gradient of this parameter is of a scaled
/// loss.
[[noreturn]] void refuse_scaled_gradient(std::string_view name, std::size_t index,
                                         const Tensor& parameter);
/// Returns the defined gradients of some tensors.
std::vector<Tensor> gradients_of(std::span<const Tensor> parameters);

}  // namespace halftone::optim
