// One training loop for every strategy:
//
//   optim::AdamW adamw(model.parameters(), {.lr = 1e-3});
//   amp::Training training = amp::apply(amp::Strategy::named("o2-fp16"), model, adamw);
//   for (auto [images, labels] : loader) {
//     training.zero_grad();
//     training.backward(cross_entropy(training.forward(model, images), labels));
//     training.clip_grad_norm(1.0);  // if wanted
//     training.step();
//   }
//
// The object casts the model, keeps masters, opens regions, scales the loss and saves all of it. On
// standard error it says if a mixed strategy cast nothing in the first step (the model ran outside
// of forward()). On a GPU a step waits only where a number is asked for.
#pragma once

#include <concepts>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include <halftone/amp/autocast.h>
#include <halftone/amp/convert_state.h>
#include <halftone/amp/loss_scale/grad_scaler.h>
#include <halftone/amp/master_weights.h>
#include <halftone/amp/session.h>
#include <halftone/amp/strategy.h>
#include <halftone/autograd/statistics_sink.h>
#include <halftone/core/communicator.h>
#include <halftone/core/tensor_source.h>
#include <halftone/distributed/options.h>

namespace halftone::amp {

class Training {
 public:
  /// See apply(). Model and optimizer must outlive this.
  Training(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer);
  /// The same, and train_together(): where ranks share out the optimizer, none ever has more
  /// masters than it keeps.
  Training(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer,
           Communicator& group, const distributed::Options& options);
  Training(Training&&) noexcept;
  ~Training();

  /// function(inputs...) as the strategy runs it: f32 inputs cast to the weights' dtype, inside a
  /// region where there is autocast. The result is f32 (f64 under fp64), so a loss outside is
  /// computed in f32 alike.
  template <class F, std::same_as<Tensor>... In> Tensor forward(F&& function, const In&... inputs) {
    begin_forward();
    const StatisticsScope statistics(statistics_sink());
    const Autocast autocast(region());
    return as_f32(function(cast_to_weights(inputs)...));
  }
  /// What forward() makes of an input: f32 in the weights' dtype, anything else as it is.
  Tensor cast_to_weights(const Tensor& x) const;

  void zero_grad();
  /// Adds the gradients of the (scaled) loss to those that are there; divide each loss by the
  /// number of calls before step(). The first call throws UsageError if gradients reach a parameter
  /// that no module's describe() names.
  void backward(const Tensor& loss);
  /// Before step(): its gradients will be clipped to this norm (of p = norm_type), in the update
  /// itself. Returns their norm, unscaled, summed in f64: an f64 scalar on their device. It is
  /// infinite or NaN if a gradient is; a strategy that scales the loss then skips the step.
  Tensor clip_grad_norm(double max_norm, double norm_type = 2);
  /// Before step(): limits the elements of unscaled gradients to [-limit, limit]. Throws UsageError
  /// under strategies whose f16 gradients cannot be unscaled (o2-fp16).
  void clip_grad_value(double limit);
  /// Updates the weights and the loss scale. False if a gradient overflowed: then nothing but the
  /// scale has changed, and schedules should not advance. Asking costs a wait on a GPU.
  Stepped step();

  // --- steps of several batches, of one process or of several
  /// From now on each backward() adds the gradients of one batch, on every rank of `group`, to a
  /// sum in f32 that depends on the order of the batches alone (distributed/reducer.h). Weigh
  /// losses so that their sum is the step's: samples of the batch / samples of the step.
  /// Collective, once, before the first step: rank 0's state and seed go to all. Throws UsageError,
  /// on all ranks, if they differ in model, strategy or environment. Each rank updates its parts of
  /// the parameters (Options::shard_optimizer): until this object ends, the optimizer's parameters,
  /// gradients and state are those of the parts; afterwards it has whole parameters and no state.
  void train_together(Communicator& group = world(), const distributed::Options& options = {});
  /// Before a batch's forward pass: its random numbers are those of this number, from 0 on and
  /// below 2^30 - 2, on every rank.
  void begin_batch(int64_t number);
  /// In the place of backward() on a rank that has no batch.
  void no_backward();
  /// Puts the sums of the step's batches into grad(), as clipping and step() do. Collective.
  void gather_gradients();
  /// The ranks that train together; null without train_together().
  Communicator* group() const;
  bool trains_together() const { return group() != nullptr; }
  /// The optimizer's parameters as the model has them, also where it has parts of them.
  std::vector<Tensor> parameters() const;
  /// The full weight of a parameter, f32 (f64): a copy, or its data where that is it. Collective
  /// where the optimizer has parts.
  Tensor weight(std::size_t index) const;

  nn::Module& model();
  const Strategy& strategy() const;
  const Region& region() const;
  GradScaler& scaler();
  /// Null where the strategy keeps nothing but the weights.
  MasterWeights* masters();
  /// For schedules and clipping functions: the user's optimizer, or the masters around it.
  optim::Optimizer& optimizer();
  /// Waits for a GPU.
  int64_t skipped_steps() const;
  /// The first parameter whose gradient overflowed in the last skipped step. On a GPU it waits and
  /// looks at the gradients now: ask before zero_grad(). Of several ranks all ask.
  const std::string& first_overflow() const;

  const LastPass& last_pass() const;
  /// Puts a session in charge of the regions to come; null: none. Returns the one before.
  std::shared_ptr<Session> set_session(std::shared_ptr<Session> session);

  // --- states. Of several ranks all call these; rank 0 has the file
  /// All that training goes on from, as handles: "model.*", "optimizer.*" (with masters and their
  /// like), "scaler.*", "generator", "strategy". Rank 0 gets whole tensors, others nothing.
  optim::NamedTensors state_dict() const;
  /// The same for a writer that takes one tensor at a time: of those that are kept in parts one is
  /// whole at a time. The writer runs on rank 0; what it throws all throw.
  void write_state(const std::function<void(const TensorSource&)>& write) const;
  /// Throws one error for what is missing, unknown, misshapen or of another strategy; then nothing
  /// has changed. Rank 0's state counts, and how many ranks saved it does not.
  void load_state_dict(const optim::NamedTensors& state, Convert convert = Convert::refuse);
  void save(const std::filesystem::path& path) const;
  void load(const std::filesystem::path& path, Convert convert = Convert::refuse);

 private:
  void begin_forward();
  static Tensor as_f32(const Tensor& result);
  StatisticsSink* statistics_sink() const;
  Stepped step_clipped();

  std::unique_ptr<TrainingCore> core_;  // training_core.h
};

/// Puts a model and its optimizer under a strategy: casts the parameters in place (handles follow),
/// gives the optimizer masters where the strategy has any. Throws UsageError if the model is not
/// f32 or its parameters are not those of the optimizer; then nothing has changed.
Training apply(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer);
/// The same under Strategy::named(), such as "amp-bf16".
Training apply(std::string_view strategy, nn::Module& model, optim::Optimizer& optimizer);
/// The same for steps of several batches, on all processes of world(): Training::train_together().
Training apply(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer,
               const distributed::Options& options);

}  // namespace halftone::amp
