// Weights that short-float parameters cannot hold, around any optimizer: f32 masters (apex), the
// f32 in two halves (IPEX), Kahan compensation, or stochastic rounding. core/weight_form.h has the
// arithmetic and the papers.
//
//   model.to(bf16);
//   optim::AdamW adamw(model.parameters(), {.lr = 1e-3});
//   amp::MasterWeights optimizer(adamw, {.form = WeightForm::split});
//   ... optimizer.step() ...
//
// It is itself an optimizer: scalers, clipping and schedules work on it.
#pragma once

#include <memory>
#include <vector>

#include <halftone/core/weight_form.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

using halftone::WeightForm;

struct MasterWeightsOptions {
  WeightForm form = WeightForm::master;
  /// One pass over short gradient, weight, optimizer state and parameter. Off (form master only):
  /// the plain version, as apex: f32 gradients are materialised, the inner optimizer steps on f32
  /// masters, which are then copied. It serves optimizers of any kind.
  bool fused = true;
  /// Gradients of several micro-batches are summed in f32 instead of their own dtype: call
  /// collect() after every backward().
  bool accumulate_in_f32 = false;
  uint64_t seed = 0;  // of stochastic rounding
};

class MasterWeights final : public optim::Optimizer {
 public:
  /// Takes charge of the weights of `inner`, which must outlive this; f32 and f64 parameters stay
  /// as they are. `initial`, one f32 tensor per parameter of inner (or none), are the weights to
  /// start from, where they are known better than the short parameters do: of form master they
  /// become the masters without a copy. Throws UsageError if there is nothing to keep, or if inner
  /// is not fused and the form needs that; DTypeError if the form cannot keep the parameters'
  /// dtype.
  explicit MasterWeights(optim::Optimizer& inner, const MasterWeightsOptions& options = {},
                         std::vector<Tensor> initial = {});
  ~MasterWeights() override;
  MasterWeights(const MasterWeights&) = delete;
  MasterWeights& operator=(const MasterWeights&) = delete;

  /// Of the inner optimizer. Sums and f32 gradients are dropped, skipped or not, and stochastic
  /// rounding draws numbers for the step in any case.
  void step(const optim::StepControl& control = {}) override;
  void publish_rates() override { inner_.publish_rates(); }
  void zero_grad(bool set_to_none = true) override;
  /// What the step will read: f32 gradients where they are materialised (that happens here), else
  /// the parameters' own.
  std::vector<Tensor> gradients() const override;
  /// The same for parameter `index`, as it is at present: f32 or its own, or undefined.
  Tensor gradient(std::size_t index) const;
  /// Adds the parameters' gradients to the f32 sums and drops them.
  void collect();

  std::string_view name() const override { return inner_.name(); }
  int group_count() const override { return inner_.group_count(); }
  /// The model's parameters.
  std::span<Tensor> group_parameters(int group) override;
  using optim::Optimizer::lr;
  using optim::Optimizer::set_lr;
  double lr(int group) const override { return inner_.lr(group); }
  int64_t state_tensors(int group, const Tensor& parameter) const override {
    return inner_.state_tensors(group, parameter);
  }
  void set_lr(double lr, int group) override { inner_.set_lr(lr, group); }
  bool elementwise() const override { return inner_.elementwise(); }

  const MasterWeightsOptions& options() const { return options_; }
  /// The full weight of parameter `index` (counted over all groups) as f32, a copy.
  Tensor weight(std::size_t index) const;
  /// The inner optimizer's parameters have been replaced by parts of themselves, which begin at
  /// these elements: takes charge of those anew, from what the parameters hold, and counts as
  /// count_as_parts(). The next state to be loaded is of parts.
  void adopt_parts(std::span<const int64_t> begins);
  /// These parameters are parts, which begin at these elements, of ones of these sizes: stochastic
  /// rounding draws the numbers of the whole ones.
  void count_as_parts(std::span<const int64_t> sizes, std::span<const int64_t> begins);
  /// Replaces it, by an f32 tensor of the parameter's shape; throws ShapeError for others.
  void set_weight(std::size_t index, const Tensor& weight);
  /// What keeps it: f32 master, i16 remainder, compensation; undefined for none.
  Tensor companion(std::size_t index) const;

  /// The inner optimizer's entries and "master.<index>", "remainder.<index>",
  /// "compensation.<index>", "rounding" (seed and steps of stochastic rounding).
  optim::NamedTensors state_dict() const override;
  /// Masters also set the parameters they belong to; the upper halves of split weights and what
  /// compensation belongs to are the model's state.
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
