// Training: a strategy in a training loop; and conversion of saved states.
#pragma once

#include <concepts>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string_view>

#include <halftone/amp/autocast.h>
#include <halftone/amp/grad_scaler.h>
#include <halftone/amp/master_weights.h>
#include <halftone/amp/session.h>
#include <halftone/amp/policy.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/communicator.h>
#include <halftone/core/named_tensors.h>
#include <halftone/distributed/wire.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

// Converts states of other strategies into states of this one.

/// How to load a state that another strategy saved.
enum class Convert {
  refuse,    // an error
  lossless,  // if this strategy can hold everything to the bit: f32 <-> o2 <-> split, kahan -> f32;
             // not frozen parameters and buffers in a shorter dtype, which have no companion
  rounding,  // rounds to what this strategy can hold
};

struct TrainingCore;
/// Converts a state of whole tensors to the strategy of `training`. Throws UsageError for
/// conversions that `convert` does not allow, DTypeError for numbers beyond the range of the
/// strategy's dtype; UsageError, ShapeError, DTypeError or FormatError for damaged states.
optim::NamedTensors converted(const TrainingCore& training, const optim::NamedTensors& given,
                              Convert convert);

// One training loop for every strategy:
//
//   optim::AdamW adamw(model.parameters(), {.lr = 1e-3});
//   amp::Training training = amp::apply(amp::Policy::named("o2-fp16"), model, adamw);
//   for (auto [images, labels] : loader) {
//     training.zero_grad();
//     training.backward(cross_entropy(training.forward(model, images), labels));
//     training.clip_grad_norm(1.0);  // if wanted
//     training.step();
//   }
//
// The object casts the model, stores masters, opens regions, scales the loss and saves all of it.
// It prints a message on standard error if a mixed strategy cast nothing in the first step (the
// model ran outside of forward()). On a GPU a step waits only if a number is requested.

class Training {
 public:
  /// See apply(). Model and optimizer must outlive this.
  Training(const Policy& strategy, nn::Module& model, optim::Optimizer& optimizer);
  /// The same, followed by train_together(). With Options::shard_optimizer, each rank makes masters
  /// of only its own parts of the parameters.
  Training(const Policy& strategy, nn::Module& model, optim::Optimizer& optimizer,
           Communicator& group, const distributed::Options& options);
  Training(Training&&) noexcept;
  ~Training();

  /// Returns function(inputs...) under the strategy, in its region. Inputs stay as they are until
  /// the first operation with short weights, so a layer before it that removes an offset sees all
  /// their digits; under fp64 they become f64. The result is f32 (f64 under fp64), so a loss
  /// outside is also computed in f32. If the first pass casts an input directly, and that changes a
  /// column by more than 1/20 of its standard deviation, a message on standard error says so.
  template <class F, std::same_as<Tensor>... In> Tensor forward(F&& function, const In&... inputs) {
    begin_forward();
    const StatisticsScope statistics(statistics_sink());
    const Autocast autocast(region());
    const std::shared_ptr<void> watch = watch_inputs({inputs...});
    const Tensor result = as_f32(function(as_input(inputs)...));
    end_forward();
    return result;
  }
  /// Returns an input as forward() passes it on: f64 under fp64, otherwise unchanged.
  Tensor as_input(const Tensor& x) const;

  void zero_grad();
  /// Adds the gradients of the (scaled) loss to the present ones. If a step has several batches,
  /// weight each mean loss by its share of the step's terms: multiply it by terms of the batch /
  /// terms of the step, where terms are what the mean divides by (labels that count, not samples).
  /// The first call throws UsageError if gradients reach a parameter that no module's describe()
  /// names.
  void backward(const Tensor& loss);
  /// Call it before step(): the update will clip the gradients to this norm (with p = norm_type).
  /// Returns their norm, unscaled, summed in f64: an f64 scalar on their device. It is infinite or
  /// NaN if a gradient is; a strategy that scales the loss then skips the step.
  Tensor clip_grad_norm(double max_norm, double norm_type = 2);
  /// Call it before step(): limits the elements of unscaled gradients to [-limit, limit]. Throws
  /// UsageError under strategies whose f16 gradients cannot be unscaled (o2-fp16).
  void clip_grad_value(double limit);
  /// Updates the weights and the loss scale. Returns false if a gradient overflowed: then only the
  /// scale has changed, and schedules should not advance. Reading the result waits for a GPU.
  Stepped step();

  // --- steps of several batches, of one process or of several
  /// From now on each rank of `group` computes one batch per backward(), and the gradients of all
  /// ranks are added in f32 (f64 for f64) in the order of the batches, so that the sum does not
  /// depend on the number of ranks (distributed/reducer.h). Multiply each mean loss by its batch's
  /// share of the terms of the step, which sum_of_ranks() adds up. All ranks must call this, once,
  /// before the first step, because it sends rank 0's state and seed to all. Throws UsageError, on
  /// all ranks, if their models, strategies or environments differ. With several ranks, forward()
  /// also throws it if the pass writes a buffer, which would differ between them. If the optimizer
  /// is sharded (Options::shard_optimizer), it has only this rank's parts of parameters, gradients
  /// and state until this object ends; then whole parameters and no state.
  void train_together(Communicator& group = world(), const distributed::Options& options = {});
  /// Call it before a batch's forward pass: the batch's random numbers then depend on `number`, not
  /// on the rank. Throws UsageError unless 0 <= number < 2^30 - 2.
  void begin_batch(int64_t number);
  /// Call it instead of backward() on a rank without a batch.
  void no_backward();
  /// Returns the sum of all ranks' `own`, in the order of the ranks; for example, of the terms by
  /// which a step's mean loss divides. Collective; without train_together(), returns `own`.
  double sum_of_ranks(double own) const;
  /// Puts the sums of the step's batches into grad(), as step() does by itself. Collective.
  void gather_gradients();
  /// Returns the ranks that train together; null without train_together().
  Communicator* group() const;
  bool trains_together() const { return group() != nullptr; }
  /// Returns the optimizer's parameters in whole, as in the model, even if the optimizer has parts.
  std::vector<Tensor> parameters() const;
  /// Returns the full weight of parameters()[index], f32 (f64): a copy for f16 and bf16 parameters,
  /// otherwise the parameter's own data. Collective if the optimizer has parts.
  Tensor weight(std::size_t index) const;

  nn::Module& model();
  const Policy& strategy() const;
  const Region& region() const;
  GradScaler& scaler();
  /// Returns the object that stores masters, halves or compensation of the weights; null if the
  /// strategy stores nothing but the weights.
  MasterWeights* masters();
  /// Returns the optimizer for schedules and clipping: the user's, or the masters that wrap it.
  optim::Optimizer& optimizer();
  /// Returns how many steps were skipped until now. Waits for a GPU.
  int64_t skipped_steps() const;
  /// Returns the name of the first parameter whose gradient overflowed in the last skipped step.
  /// Call it on all ranks and before zero_grad(), because on a GPU it only now looks for it, in the
  /// present gradients.
  const std::string& first_overflow() const;

  const LastPass& last_pass() const;
  /// Sets the session of later regions; null: none. Returns the previous one.
  std::shared_ptr<policy::Session> set_session(std::shared_ptr<policy::Session> session);

  // --- states. All ranks call these; rank 0 has the file
  /// Returns the whole training state, as handles: "model.*", "optimizer.*" (with masters and
  /// companions), "scaler.*", "session.*", "generator", "strategy", "form", "skipped_steps" if
  /// there are any. Rank 0 gets whole tensors, others nothing.
  optim::NamedTensors state_dict() const;
  /// Calls `write` on rank 0 with the same state, from which it can take one tensor at a time: a
  /// tensor stored in parts is joined when it is taken. Errors of `write` are thrown on all ranks.
  void write_state(const std::function<void(const TensorSource&)>& write) const;
  /// Loads rank 0's state; any number of ranks may have saved it. Throws one error for entries that
  /// are missing, unknown, misshapen or of a strategy that `convert` refuses; then nothing changed.
  void load_state_dict(const optim::NamedTensors& state, Convert convert = Convert::refuse);
  void save(const std::filesystem::path& path) const;
  void load(const std::filesystem::path& path, Convert convert = Convert::refuse);

 private:
  void begin_forward();
  void end_forward();
  std::shared_ptr<void> watch_inputs(std::initializer_list<Tensor> inputs);
  static Tensor as_f32(const Tensor& result);
  StatisticsSink* statistics_sink() const;
  Stepped step_clipped();

  std::unique_ptr<TrainingCore> core_;  // training_core.h
};

/// Applies a strategy to a model and its optimizer: casts the parameters in place (handles follow),
/// and gives the optimizer masters if the strategy has any. Throws DTypeError if the model is not
/// f32. Throws UsageError if the optimizer has parameters that the model lacks, or does not support
/// the strategy. Then nothing has changed.
Training apply(const Policy& strategy, nn::Module& model, optim::Optimizer& optimizer);
/// The same for the strategy Policy::named(strategy), such as "amp-bf16".
Training apply(std::string_view strategy, nn::Module& model, optim::Optimizer& optimizer);
/// The same, followed by Training::train_together() with `options` on all processes of world().
Training apply(const Policy& strategy, nn::Module& model, optim::Optimizer& optimizer,
               const distributed::Options& options);

}  // namespace halftone::amp
