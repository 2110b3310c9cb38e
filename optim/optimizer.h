// What the rest of the system knows of an optimizer: gradient scalers, clipping, schedules and
// wrappers (master weights) talk to this class only, so that every combination composes. Optimizers
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

/// Where a precision strategy enters a step: it keeps what a short-float parameter cannot hold
/// (f32 masters, remainders, compensation), and may collect gradients of its own. amp/ fills this
/// slot; without one, parameters are updated as they are.
class WeightKeeper {
 public:
  virtual ~WeightKeeper() = default;
  /// The gradient of a parameter, `index` counted over all groups; undefined: leave it out.
  virtual Tensor gradient(std::size_t index, const Tensor& parameter) const = 0;
  /// Adds form, companion and random key to what the backend is about to update.
  virtual void complete(std::size_t index, UpdateSlot& slot) = 0;
};

/// What a precision strategy asks of a step: two f32 scalars, each of them undefined or on a
/// device.
struct StepControl {
  /// Every gradient is multiplied by it first: 1 / loss scale, clipping.
  Tensor factor{};
  /// Where it is other than 0, nothing happens.
  Tensor skip{};
  /// The caller has seen to the loss scale of the gradients. Without it, and without the two
  /// scalars, gradients of a scaled loss are refused.
  bool knows_scale = false;
};

class Optimizer {
 public:
  Optimizer() = default;
  Optimizer(Optimizer&&) = default;
  Optimizer& operator=(Optimizer&&) = default;
  virtual ~Optimizer() = default;
  /// The class as users name it, "AdamW": for messages and records. An optimizer of a user's that
  /// has none is "Optimizer".
  virtual std::string_view name() const { return "Optimizer"; }

  /// Updates every parameter that has a gradient, as `control` says. Throws UsageError for
  /// gradients of a loss that a GradScaler scaled, unless they were unscaled or `control` says how.
  /// Optimizers of this folder do not write the gradients and pass `skip` on to the update, so the
  /// host does not wait. An optimizer without support for `control` begins with `if
  /// (!begin_step(control)) return;`.
  virtual void step(const StepControl& control = {}) = 0;
  /// Puts what steps read from the host, rates and step counts, where a captured step finds it: on
  /// the device. Call it before a capture, and before a replay if a rate has changed by options()
  /// (set_lr() does it by itself). After load_state_dict() capture again.
  virtual void publish_rates() {}
  /// Puts a keeper in charge of the weights (null: none). False if this optimizer has no place for
  /// one, being none that updates through the backend.
  virtual bool set_weight_keeper(std::shared_ptr<WeightKeeper> keeper);
  /// Where the dtype of the optimizer's state was left open, it is this one from the first step on.
  /// False if this optimizer has no such choice.
  virtual bool set_default_state_dtype(DType dtype);
  /// Whether what becomes of an element depends on that element alone, its gradient and its state:
  /// then a parameter may be updated in parts, which are 1-D views of its data.
  virtual bool elementwise() const { return false; }
  /// Drops the gradients or, with set_to_none off, writes zeros into them.
  virtual void zero_grad(bool set_to_none = true);
  /// The gradients that the next step will read: what to unscale and to clip. A wrapper may have
  /// its own.
  virtual std::vector<Tensor> gradients() const;

  // --- groups: parameters that share their options
  virtual int group_count() const = 0;
  /// Handles in the order of state_dict(). A wrapper may put others of the same shapes in their
  /// place.
  virtual std::span<Tensor> group_parameters(int group) = 0;
  virtual double lr(int group) const = 0;
  /// How many tensors of its size step() keeps for a parameter of a group: Adam 2.
  virtual int64_t state_tensors(int /*group*/, const Tensor& /*parameter*/) const { return 0; }
  virtual void set_lr(double lr, int group) = 0;

  /// The parameters of all groups.
  std::vector<Tensor> parameters() const;
  /// The rate of the first group.
  double lr() const { return lr(0); }
  /// Sets all groups.
  void set_lr(double lr);

  /// Names as in PyTorch: state.0.exp_avg, state.0.step, param_groups.0.lr, ... Tensors are
  /// handles, not copies.
  virtual NamedTensors state_dict() const = 0;
  /// Takes copies, in the dtypes they come in: optimizer state is never cast to the parameter's
  /// dtype. Throws one UsageError that lists everything that does not fit; then nothing has
  /// changed.
  virtual void load_state_dict(const NamedTensors& state) = 0;

 protected:
  /// Reads `skip`, which may wait for the device: false if it is set. Else multiplies the gradients
  /// by the factor, in place.
  bool begin_step(const StepControl& control) const;
  /// The same check as the first thing that step() does: throws UsageError, by this name, if a
  /// gradient is of a scaled loss and `control` does not know of it.
  void require_unscaled(std::string_view name, const StepControl& control) const;
};

/// Throws UsageError, by the name of an optimizer: the gradient of this parameter is of a scaled
/// loss.
[[noreturn]] void refuse_scaled_gradient(std::string_view name, std::size_t index,
                                         const Tensor& parameter);
/// The defined gradients of some tensors.
std::vector<Tensor> gradients_of(std::span<const Tensor> parameters);

}  // namespace halftone::optim
