// The data of a Training, and the path of its gradients.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/amp/training.h>
#include <halftone/autograd/slots.h>
#include <halftone/core/communicator.h>
#include <halftone/core/named_tensors.h>
#include <halftone/distributed/collectives.h>
#include <halftone/distributed/reducer.h>
#include <halftone/nn/module.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

// The path of gradients from backward passes to the optimizer. One process and several differ only
// here: Training owns the loop and calls its route, and no other code depends on the number of
// ranks.

struct TrainingCore;

/// The route of one process: gradients add up in grad(). train_together() replaces it by another.
class GradientRoute {
 public:
  explicit GradientRoute(TrainingCore& core) : core_(core) {}
  virtual ~GradientRoute() = default;
  GradientRoute(const GradientRoute&) = delete;
  GradientRoute& operator=(const GradientRoute&) = delete;
  /// The communicator of the ranks; null if this process trains alone.
  virtual Communicator* group() const { return nullptr; }

  // --- a batch
  virtual void begin_batch(int64_t) {}
  virtual void begin_forward() {}
  /// Throws UsageError if the forward pass wrote a buffer, which would differ between ranks.
  virtual void end_forward() {}
  /// Throws UsageError if gradients of the last step are left, or the model was moved or cast.
  virtual void require_fresh() const {}
  /// Converts the present gradients from the loss scale `old` to the present one, or throws
  /// UsageError if the route cannot.
  virtual void rescale(const Tensor& old);
  virtual void begin_backward() {}
  /// Returns the listener to install during the backward pass; null: none.
  virtual GradientListener* listener() { return nullptr; }
  virtual void end_backward();
  /// Called instead of a backward pass on a rank without a batch.
  virtual void no_backward();
  /// Returns the receiver of the forward pass's batch statistics; null: layers update their running
  /// statistics themselves.
  virtual StatisticsSink* statistics_sink() { return nullptr; }

  // --- a step
  /// Drops gradients that are in transit.
  virtual void drop() {}
  /// Throws UsageError for a strategy that the route cannot follow.
  virtual void begin_step();
  /// Moves gradients that are in transit into grad().
  virtual void gather() {}
  /// Returns the norm of all gradients, the loss scale included: an f64 scalar on their device.
  virtual Tensor norm(double norm_type) const;
  /// Called after a step: the optimizer may have updated the parameters.
  virtual void end_step() {}
  /// Returns the sum of the numbers that the ranks passed.
  virtual double sum(double own) const { return own; }
  /// Returns the smallest number that any rank passed.
  virtual std::size_t smallest(std::size_t number) const { return number; }

  // --- parameters
  /// The same as Training::parameters() and Training::weight().
  virtual std::vector<Tensor> parameters() const;
  virtual Tensor weight(std::size_t index) const;

  // --- states
  /// Runs f on rank 0. If f throws, all ranks throw the same error.
  virtual void on_rank_0(std::string_view what, const std::function<void()>& f) const;
  /// Calls `write` on rank 0 with the state of all ranks, in whole tensors.
  virtual void write_state(const std::function<void(const TensorSource&)>& write) const;
  /// Returns this rank's part of the state that `make` returns on rank 0.
  virtual optim::NamedTensors part_of_state(const std::function<optim::NamedTensors()>& make) const;

 protected:
  TrainingCore& core_;
};

// The members of a Training. They stay at their address when the Training is moved, because
// gradient routes refer to them.

/// The function's name in messages of loading errors.
inline constexpr std::string_view loading_training = "Training.load_state_dict";

/// Determines the parts of the parameters that a rank keeps.
struct Cut {
  distributed::Shards shards;
  int rank;
};

struct TrainingCore {
  /// With a cut (not null), copies the f32 weights of only this rank's parts; train_together() then
  /// makes their masters.
  TrainingCore(const Policy& strategy, nn::Module& model, optim::Optimizer& optimizer,
               const Cut* cut);

  Policy strategy;
  nn::Module& model;
  optim::Optimizer& optimizer;  // the user's
  std::unique_ptr<MasterWeights> masters{};
  struct MastersOfParts {
    MasterWeightsOptions options;
    std::vector<Tensor> initial;  // f32
  };
  std::optional<MastersOfParts> masters_to_come{};
  GradScaler scaler;
  Region region;

  // --- the present step
  Tensor made_with{};  // the loss scale of the present gradients; undefined: there are none
  struct Clipping {
    Tensor norm;  // of all gradients, unscaled
    double max_norm;
  };
  std::optional<Clipping> clipping{};  // from clip_grad_norm() to step()
  nn::BufferCopies statistics{};       // before the step
  LastPass last_pass{};
  // --- all steps
  bool first_backward = true, watches_inputs = true;
  std::optional<int64_t> casts_before = casts_made();  // at the start; empty after the first step
  int64_t skipped_steps = 0;
  Tensor skipped_on_device{};  // further skipped steps, which the host has not read: f64 scalar
  Stepped last_step{true};     // not yet read by first_overflow()
  std::string first_overflow{};

  std::unique_ptr<GradientRoute> route;  // the last member: its destructor uses the others

  /// Returns the optimizer that steps: the masters if there are any, else the user's optimizer.
  optim::Optimizer& stepping() const { return masters ? *masters : optimizer; }
  /// Returns one gradient per parameter; undefined for a parameter that has none.
  std::vector<Tensor> gradients() const;
  int64_t all_skipped_steps() const;
  void zero_grad();
  /// Copies the buffers if the strategy asks for it, so that a skipped step can restore them.
  void hold_statistics();

  // --- states (training.cpp)
  /// Returns the state of this rank, with parts of optimizer entries if ranks keep only parts.
  optim::NamedTensors state() const;
  void load(const optim::NamedTensors& state);
  /// Loads everything but the model and the session.
  void load_except_model(const optim::NamedTensors& state);

 private:
  void convert_weights(const Cut* cut);
};

// Steps of several batches, on one process or on several. Gradients and running statistics are
// summed in the order of the batches (distributed/reducer.h). Each of several ranks may update its
// own parts of the parameters (distributed/collectives.h): then the optimizer holds the parts
// instead of the parameters, and optimizer state and masters have their sizes. A saved state has
// whole tensors: rank 0 joins the parts, and distributes them after loading.

class TogetherRoute final : public GradientRoute {
 public:
  /// Throws UsageError, on all ranks, if they differ in model, strategy or environment. Call
  /// begin() next.
  TogetherRoute(TrainingCore& core, Communicator& group, const distributed::Options& options);
  ~TogetherRoute() override;
  /// Gives all ranks the state of rank 0, or their parts of it.
  void begin();

  Communicator* group() const override { return &group_; }
  void begin_batch(int64_t number) override { batch_ = number; }
  void begin_forward() override;
  void end_forward() override;
  void require_fresh() const override;
  void rescale(const Tensor& old) override;
  void begin_backward() override;
  GradientListener* listener() override { return &reducer_; }
  void end_backward() override { add_batches(true); }
  void no_backward() override;
  StatisticsSink* statistics_sink() override { return &statistics_; }
  void drop() override;
  void begin_step() override;
  void gather() override;
  Tensor norm(double norm_type) const override;
  void end_step() override { reducer_.gather_parameters(); }
  double sum(double own) const override;
  std::size_t smallest(std::size_t number) const override;
  std::vector<Tensor> parameters() const override;
  Tensor weight(std::size_t index) const override;
  void on_rank_0(std::string_view what, const std::function<void()>& f) const override;
  void write_state(const std::function<void(const TensorSource&)>& write) const override;
  optim::NamedTensors part_of_state(
      const std::function<optim::NamedTensors()>& make) const override;

 private:
  bool of_several() const { return group_.size() > 1; }
  bool has_parts() const { return !reducer_.parts().empty(); }
  void add_batches(bool took_part) { reducer_.add_batches(took_part), statistics_.apply(); }

  // --- parts of parameters
  void replace_parameters(const std::vector<Tensor>& others);
  void share_out();
  void make_masters_of_parts();
  std::vector<int64_t> begins_of_parts() const;
  // --- states (together.cpp)
  std::optional<std::size_t> parameter_of_entry(std::string_view name) const;
  void require_shapes(const optim::NamedTensors& state) const;
  optim::NamedTensors taken_from_rank_0(const optim::NamedTensors& state) const;

  Communicator& group_;
  distributed::Reducer reducer_;
  distributed::OrderedStatistics statistics_;
  nn::BufferCopies buffers_{};      // copies from before a forward pass, for several ranks
  bool gathered_ = false;           // the present gradients are the sums
  std::optional<int64_t> batch_{};  // from begin_batch(), and not yet used by a backward()
};

/// Returns the parts of the optimizer's parameters that this rank will keep; null: it keeps all.
/// First every rank gets the f32 weights of rank 0, so that masters of all parts come from the same
/// weights. Throws UsageError, on all ranks, if ranks differ in model, strategy or environment.
std::unique_ptr<Cut> cut_for(const Policy& strategy, const nn::Module& model,
                             const optim::Optimizer& optimizer, Communicator& group,
                             const distributed::Options& asked);

}  // namespace halftone::amp
