// The path of gradients from backward passes to the optimizer. One process and several differ only
// here: Training owns the loop and calls its route, and no other code depends on the number of
// ranks.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include <halftone/autograd/slots.h>
#include <halftone/core/communicator.h>
#include <halftone/core/named_tensors.h>
#include <halftone/optim/optimizer.h>

namespace halftone::amp {

struct TrainingCore;

/// One process: gradients add up in grad(). TogetherRoute (together.h) is the other.
class GradientRoute {
 public:
  explicit GradientRoute(TrainingCore& core) : core_(core) {}
  virtual ~GradientRoute() = default;
  GradientRoute(const GradientRoute&) = delete;
  GradientRoute& operator=(const GradientRoute&) = delete;
  /// The ranks; null: this process alone.
  virtual Communicator* group() const { return nullptr; }

  // --- a batch
  virtual void begin_batch(int64_t) {}
  virtual void begin_forward() {}
  /// Throws UsageError if the forward pass wrote what ranks cannot join.
  virtual void end_forward() {}
  /// Throws UsageError if gradients of an earlier step, or a moved model, make backward() wrong.
  virtual void require_fresh() const {}
  /// Called if the loss scale has changed since the present gradients were made with `old`.
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
  /// Returns the norm of all gradients, still with the loss scale: an f64 scalar on their device.
  virtual Tensor norm(double norm_type) const;
  /// Called after a step: the optimizer may have updated the parameters.
  virtual void end_step() {}
  /// Returns the sum of the numbers that the ranks passed.
  virtual double sum(double own) const { return own; }
  /// Returns the smallest number that any rank passed.
  virtual std::size_t smallest(std::size_t number) const { return number; }

  // --- parameters
  /// As Training::parameters() and Training::weight().
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

}  // namespace halftone::amp
