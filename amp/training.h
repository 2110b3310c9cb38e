// One training loop for every strategy:
//
//   optim::AdamW adamw(model.parameters(), {.lr = 1e-3});
//   amp::Training training = amp::apply(amp::Strategy::named("o2-fp16"), model, adamw);
//   for (auto [images, labels] : loader) {
//     training.zero_grad();
//     Tensor loss = cross_entropy(training.forward(model, images), labels);
//     training.backward(loss);
//     training.clip_grad_norm(1.0);  // if wanted
//     training.step();
//   }
//
// The object casts the model, keeps masters, opens regions, scales the loss and saves all of it. A
// first step in which a mixed strategy cast nothing (the model ran outside of forward()) is told on
// standard error. On a GPU no step waits, unless somebody asks for a number: the norm's value,
// whether step() stepped.
#pragma once

#include <concepts>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include <halftone/amp/autocast.h>
#include <halftone/amp/grad_scaler.h>
#include <halftone/amp/master_weights.h>
#include <halftone/amp/strategy.h>
#include <halftone/amp/weight_storage.h>
#include <halftone/autograd/ops/cast.h>
#include <halftone/autograd/statistics_sink.h>
#include <halftone/core/communicator.h>
#include <halftone/core/tensor_source.h>
#include <halftone/distributed/options.h>
#include <halftone/nn/buffer_copies.h>

namespace halftone::amp {

/// What loading does with a state that another strategy saved.
enum class Convert {
  refuse,    // an error
  lossless,  // if this strategy can hold everything to the bit: f32 <-> o2 <-> split, kahan -> f32;
             // not what has nothing beside it, frozen parameters and buffers, in a shorter dtype
  rounding,  // rounds to what this strategy can hold
};

class Training {
 public:
  /// See apply(). Model and optimizer must outlive this.
  Training(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer);
  /// The same, and train_together(). Where ranks share out the optimizer, masters are made of the
  /// parts alone: no rank ever has more of them than it keeps.
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
    const Autocast region(region_);
    const Tensor result = function(cast_to_weights(inputs)...);
    return is_short_float(result) ? cast(result, f32) : result;
  }

  void zero_grad();
  /// Gradients of the (scaled) loss are added to those that are there. Several calls before step()
  /// accumulate; divide each loss by their number. The first throws UsageError if gradients reach a
  /// parameter that no module's describe() names.
  void backward(const Tensor& loss);
  /// Before step(): its gradients will be clipped to this norm, in the update itself. Returns the
  /// norm that they have, unscaled, their squares summed in f64: an f64 scalar on their device. It
  /// is infinite or NaN if a gradient is; a strategy that scales the loss is then going to skip the
  /// step.
  /// norm_type: p of another norm, as optim::ClipOptions.
  Tensor clip_grad_norm(double max_norm, double norm_type = 2);
  /// Before step(): limits every element of the unscaled gradients to [-limit, limit]. Throws
  /// UsageError under strategies whose f16 gradients cannot be unscaled (o2-fp16).
  void clip_grad_value(double limit);
  /// Updates the weights and the loss scale. False if a gradient overflowed: then nothing else has
  /// changed, and schedules should not advance either. Asking costs a wait on a GPU.
  Stepped step();

  // --- steps of several batches, of one process or of several (training_together.cpp)
  /// From now on each backward() hands the gradients of one batch of a step, on every rank of
  /// `group`, to a sum in f32 that depends on the order of the batches alone: see
  /// distributed/reducer.h. Losses are weighed so that their sum is the step's (samples of the
  /// batch / samples of the step). Collective, once, before the first step: rank 0's state and seed
  /// go to all. Throws UsageError, on all ranks, if they differ in model, strategy or environment.
  ///
  /// On several ranks each updates its parts of the parameters (Options::shard_optimizer): until
  /// this object ends, the optimizer's parameters, gradients and state are those of the parts, and
  /// afterwards it has whole parameters and no state. Move or cast the model before.
  void train_together(Communicator& group = world(), const distributed::Options& options = {});
  /// Before a batch's forward pass: its random numbers are those of this number, whoever computes
  /// it. Numbers begin at 0 and are below 2^30 - 2.
  void begin_batch(int64_t number);
  /// In the place of backward() on a rank that has no batch while others have one.
  void no_backward();
  /// Puts the sums of the step's batches into the grad() of the optimizer's parameters, where
  /// clipping and step(), which do this by themselves, find them. Collective.
  void gather_gradients();
  bool trains_together() const { return together_ != nullptr; }
  /// Those that train together; null where nobody does.
  Communicator* group() const;
  /// The optimizer's parameters as the model has them, also where it has parts of them.
  std::vector<Tensor> parameters() const;
  /// The full weight of parameter `index`, f32 (f64): a copy, or the parameter's data where that is
  /// it. Collective where the optimizer has parts.
  Tensor weight(std::size_t index) const;

  nn::Module& model() { return model_; }
  const Strategy& strategy() const { return strategy_; }
  const Region& region() const { return region_; }
  GradScaler& scaler() { return scaler_; }
  /// Null where the strategy keeps nothing beside the weights.
  MasterWeights* masters() { return masters_.get(); }
  /// What to give to schedules and clipping functions: the user's optimizer, or the masters around
  /// it.
  optim::Optimizer& optimizer() { return masters_ ? *masters_ : optimizer_; }
  /// Waits for a GPU.
  int64_t skipped_steps() const;
  /// The name of the first parameter whose gradient overflowed in the last skipped step. On a GPU
  /// it waits, and looks at the gradients now: ask before zero_grad(), or it is the name of an
  /// earlier step. Of several ranks all ask.
  const std::string& first_overflow() const;

  /// What a second run of the last forward pass needs: where the default generator stood when it
  /// began, and the loss scale that its backward had (undefined: none).
  struct LastPass {
    RandomKey random{};
    Tensor scale{};
  };
  const LastPass& last_pass() const { return last_pass_; }
  /// Puts a session in charge of the regions to come; null: none. Returns the one before.
  std::shared_ptr<Session> set_session(std::shared_ptr<Session> session);

  /// Everything that training goes on from: "model.*", "optimizer.*" (with masters, remainders,
  /// compensation), "scaler.*", "generator", "strategy". Handles, not copies. Of several ranks that
  /// train together all call this: rank 0 gets the state of all, whole tensors, and the others get
  /// nothing.
  optim::NamedTensors state_dict() const;
  /// The same for a writer that takes one tensor at a time, so that no more than one of those that
  /// are kept in parts is whole at any time. Of several ranks all call this, the writer runs on
  /// rank 0, and what it throws all throw.
  void write_state(const std::function<void(const TensorSource&)>& write) const;
  /// Throws one error for what is missing, unknown, misshapen or of another strategy; then nothing
  /// has changed. Of several ranks all call this; rank 0's state counts, and how many ranks saved
  /// it does not.
  void load_state_dict(const optim::NamedTensors& state, Convert convert = Convert::refuse);
  /// Of several ranks all call these; rank 0 has the file.
  void save(const std::filesystem::path& path) const;
  void load(const std::filesystem::path& path, Convert convert = Convert::refuse);

  /// What forward() makes of an input: f32 in the weights' dtype, anything else as it is.
  Tensor cast_to_weights(const Tensor& x) const {
    const bool casts = strategy_.weights != f32 && x.defined() && x.dtype() == f32;
    return casts ? cast(x, strategy_.weights) : x;
  }

 private:
  /// Of the parts that this rank will have of the optimizer's parameters; null: of whole ones.
  struct Cut;
  Training(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer,
           const Cut* cut);
  void convert_weights(const Cut* cut);
  static std::unique_ptr<Cut> cut_for(const Strategy& strategy, const nn::Module& model,
                                      const optim::Optimizer& optimizer, Communicator& group,
                                      const distributed::Options& asked);
  static Tensor initial_weight(const Tensor& parameter, std::size_t index, const Cut* cut);
  Stepped step_clipped();
  void account_for(const Stepped& stepped);
  void note_overflow() const;
  void say_if_nothing_was_cast();
  std::vector<Tensor> gradients_by_parameter() const;

  // --- states (training_state.cpp, convert_state.cpp)
  optim::NamedTensors local_state() const;
  optim::NamedTensors fitting(const optim::NamedTensors& given, Convert convert) const;
  optim::NamedTensors converted(const optim::NamedTensors& given, Convert convert) const;
  void load_local(const optim::NamedTensors& state);
  void load_beside_model(const optim::NamedTensors& state);

  // --- parts of parameters (training_parts.cpp)
  bool has_parts() const;
  void share_out();
  void make_masters_of_parts();
  std::vector<int64_t> begins_of_parts() const;
  void replace_parameters(const std::vector<Tensor>& others);
  Tensor norm_together(double norm_type) const;
  std::optional<std::size_t> parameter_of_entry(std::string_view name) const;
  void require_shapes(const optim::NamedTensors& state) const;
  optim::NamedTensors taken_from_rank_0(const optim::NamedTensors& state) const;

  void begin_forward();
  void hold_statistics();
  void require_fresh_gradients() const;
  void prepare_wire();
  void tell_session();
  StatisticsSink* statistics_sink() const;

  Strategy strategy_;
  nn::Module& model_;
  optim::Optimizer& optimizer_;
  std::unique_ptr<MasterWeights> masters_;
  std::optional<MasterWeightsOptions> masters_to_come_{};  // of parts, when the optimizer has them
  std::vector<Tensor> initial_parts_{};                    // f32
  GradScaler scaler_;
  Region region_;
  bool first_backward_ = true;
  std::optional<int64_t> casts_before_ = casts_made();  // until the first step
  Tensor made_with_{};  // the scale of the gradients that are there; undefined: there are none
  struct Clipping {
    Tensor norm;  // of all gradients, unscaled
    double max_norm;
  };
  std::optional<Clipping> clipping_;  // from clip_grad_norm() to step()
  int64_t skipped_steps_ = 0;
  Tensor skipped_on_device_{};       // more of them, that the host has not seen: f64 scalar
  mutable Stepped last_step_{true};  // what first_overflow() has not asked yet
  mutable std::string first_overflow_;
  nn::BufferCopies statistics_;  // under hold_statistics
  LastPass last_pass_{};
  struct Together;
  std::unique_ptr<Together> together_;
};

/// Puts a model and its optimizer under a strategy: casts the model's parameters in place (handles
/// follow), gives the optimizer masters where the strategy has any. The model must be f32 and its
/// parameters those of the optimizer. Throws UsageError if they are not; then nothing has changed.
Training apply(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer);
/// The same under Strategy::named(): apply("amp-bf16", model, optimizer).
Training apply(std::string_view strategy, nn::Module& model, optim::Optimizer& optimizer);
/// The same for steps of several batches, on all processes of world(): see
/// Training::train_together().
Training apply(const Strategy& strategy, nn::Module& model, optim::Optimizer& optimizer,
               const distributed::Options& options);

}  // namespace halftone::amp
