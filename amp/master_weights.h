// Weights in a form: conversion, and the companions of a training.
#pragma once

#include <memory>
#include <vector>

#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>
#include <halftone/core/update_rules.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

// Converts f32 weights into a form (core/update_rules.h) and back, for making masters, saving,
// loading and converting between strategies. Not for training steps: the backends' optimizers
// convert as part of the update.

/// Returns whether x is bf16 or f16: such parameters need a form.
inline bool is_short_float(const Tensor& x) { return x.dtype() == bf16 || x.dtype() == f16; }

/// Returns the entry of the memory ledger (core/memory.h) that counts a form's companion.
MemoryUse companion_use(WeightForm form);

/// Throws DTypeError, in the name of `where`, if this form cannot store parameters of `dtype`.
void require_form(std::string_view where, WeightForm form, DType dtype);

/// Returns the full weight that a parameter and its companion store together, as a new tensor: f32,
/// or f64 for an f64 parameter.
Tensor joined_weight(WeightForm form, const Tensor& parameter, const Tensor& companion);
/// Writes a full weight (f32 or f64) into a parameter and its companion.
void store_weight(WeightForm form, const Tensor& weight, Tensor& parameter, Tensor& companion);

// Wraps any optimizer to store weights that short-float parameters cannot hold: f32 masters (apex),
// the f32 in two halves (IPEX), Kahan compensation, or stochastic rounding. core/update_rules.h has
// the arithmetic and the papers.
//
//   model.to(bf16);
//   optim::AdamW adamw(model.parameters(), {.lr = 1e-3});
//   amp::MasterWeights optimizer(adamw, {.form = WeightForm::split});
//   ... optimizer.step() ...
//
// It is itself an optimizer: scalers, clipping and schedules work on it.

using halftone::WeightForm;

struct MasterWeightsOptions {
  WeightForm form = WeightForm::master;
  /// True: one pass reads the short gradient and updates weight, state and parameter. False (form
  /// master only): as apex, makes f32 gradients, steps the inner optimizer on f32 masters, and
  /// copies the masters to the parameters. This supports any optimizer.
  bool fused = true;
  /// Sums gradients of several micro-batches in f32 instead of their own dtype: call collect()
  /// after every backward().
  bool accumulate_in_f32 = false;
  uint64_t seed = 0;  // of stochastic rounding
};

class MasterWeights final : public optim::Optimizer {
 public:
  /// Manages the weights of `inner`, which must outlive this; f32 and f64 parameters do not change.
  /// `initial` is empty, or has one f32 tensor per parameter: initial weights that are more exact
  /// than the short parameters. With form master they become the masters without a copy. Throws
  /// UsageError if no parameter needs a form, if `initial` does not fit the parameters, or if
  /// `inner` or options.fused does not fit the form. Throws DTypeError if the form cannot store the
  /// parameters' dtype.
  explicit MasterWeights(optim::Optimizer& inner, const MasterWeightsOptions& options = {},
                         std::vector<Tensor> initial = {});
  ~MasterWeights() override;
  MasterWeights(const MasterWeights&) = delete;
  MasterWeights& operator=(const MasterWeights&) = delete;

  /// Steps the inner optimizer, then drops the f32 sums and gradients. A skipped step drops them as
  /// well, and uses up its random numbers of stochastic rounding.
  void step(const optim::StepControl& control = {}) override;
  void publish_rates() override { inner_.publish_rates(); }
  void zero_grad(bool set_to_none = true) override;
  /// Returns the gradients that the step will read: f32 gradients if they are used (they are made
  /// here), else the parameters' own.
  std::vector<Tensor> gradients() const override;
  /// Returns the gradient that the step will read for parameter `index`: its f32 gradient if it has
  /// one, else its own; undefined if it has none.
  Tensor gradient(std::size_t index) const;
  /// Adds the gradients of bf16 and f16 parameters to the f32 sums and drops these gradients.
  void collect();

  std::string_view name() const override { return inner_.name(); }
  int group_count() const override { return inner_.group_count(); }
  /// Returns the parameters of a group as in the model, never the masters.
  std::span<Tensor> group_parameters(int group) override;
  using optim::Optimizer::lr;
  using optim::Optimizer::set_lr;
  double lr(int group) const override { return inner_.lr(group); }
  int64_t state_bytes(int group, const Tensor& parameter, DType dtype, int64_t elements,
                      const optim::StateFormats& formats) const override {
    return inner_.state_bytes(group, parameter, dtype, elements, formats);
  }
  void set_lr(double lr, int group) override { inner_.set_lr(lr, group); }
  bool elementwise() const override { return inner_.elementwise(); }

  const MasterWeightsOptions& options() const { return options_; }
  /// Returns the full weight of parameter `index` (counted over all groups) as f32, a copy.
  Tensor weight(std::size_t index) const;
  /// Called after each parameter of the inner optimizer was replaced by a part of it; part i starts
  /// at element begins[i]. Manages the parts from their present values, and draws random numbers as
  /// after count_as_parts(). The next state to load must have parts.
  void adopt_parts(std::span<const int64_t> begins);
  /// Call it if parameter i is a part of a parameter of sizes[i] elements and starts at begins[i]:
  /// stochastic rounding then draws the same numbers as for the whole parameters.
  void count_as_parts(std::span<const int64_t> sizes, std::span<const int64_t> begins);
  /// Replaces the weight by an f32 tensor of the parameter's shape; throws ShapeError for others.
  void set_weight(std::size_t index, const Tensor& weight);
  /// Returns the companion: f32 master, i16 remainder, compensation; undefined for none.
  Tensor companion(std::size_t index) const;

  /// Returns the inner optimizer's entries and "master.<index>", "remainder.<index>",
  /// "compensation.<index>", "rounding" (seed and steps of stochastic rounding).
  optim::NamedTensors state_dict() const override;
  /// Loads the state. Masters also set the parameters they belong to; the upper halves of split
  /// weights and the parameters of compensation are in the model's state.
  void load_state_dict(const optim::NamedTensors& state) override;

 private:
  struct State;  // companions and gradients, shared with the keeper in the inner optimizer
  class Keeper;
  void materialize_gradients() const;
  void add_to_sums() const;
  void prepare_gradients() const;
  void step_plain(const optim::StepControl& control);

  optim::Optimizer& inner_;
  MasterWeightsOptions options_;
  std::shared_ptr<State> state_;
};

}  // namespace halftone::amp
