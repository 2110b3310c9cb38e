// Adds the gradients of all batches, computed on any ranks, to the sum for one step:
//
//   sum = ((c_0 + c_1) + c_2) + ...     c_j: batch j's gradient after the wire
//
// A step has K batches, numbered from 0; rank r of N computes batches r, r + N, r + 2 N, ... A
// reduction adds N of them, so a step takes K / N. Each element of a parameter has an owner. All
// ranks send it their gradients; it adds in f32 (f64 for f64) in the order of the batches. So
// neither N nor an engine's algorithm can change a bit, and a short wire rounds once, never per
// hop. A batch without a gradient counts as -0.0, which changes no sum. As a listener it sends
// gradients during the backward pass. The owner also updates its elements (collectives.h) and sends
// the result to all; otherwise all ranks get the sums and update everything.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include <halftone/autograd/slots.h>
#include <halftone/core/communicator.h>
#include <halftone/distributed/collectives.h>
#include <halftone/distributed/wire.h>

namespace halftone::distributed {

class Reducer final : public GradientListener {
 public:
  /// Takes the parameters, in the same order on all ranks, possibly on a GPU. Throws UsageError for
  /// options out of range, and for parameters that are shared out but not row-major.
  Reducer(Communicator& group, std::vector<Tensor> parameters, const Options& options);
  const WireFormat& wire() const { return wire_; }

  /// Called before the gradients of this rank's batch. `key`: for the random rounding of the wire;
  /// `loss_scale`: the factor of the batch's loss.
  void begin_batch(RandomKey key, double loss_scale) { key_ = key, loss_scale_ = loss_scale; }
  /// Called in the backward pass of this rank's batch, before add_batches(), when a parameter's
  /// gradient is complete. Buckets (groups of parameters) are sent in the same order on all ranks.
  void on_gradient(AutogradMeta& leaf) override;
  /// Takes the gradients of this rank's batch out of the parameters and adds those of all ranks to
  /// the sums. `took_part`: false for a rank that had no batch. Collective.
  void add_batches(bool took_part);
  /// Gives every parameter that a batch reached its sum as the gradient, f32 (f64); with parts,
  /// gives it to this rank's part only. Then the sums start again. Collective.
  void finish();
  /// Called after an update of the parts: sends them to all ranks, for the parameters to which the
  /// last finish() gave gradients. Collective; does nothing without parts.
  void gather_parameters();
  /// Drops the sums, and gradients that have not been added to them.
  void drop();
  /// Returns whether there are sums for finish().
  bool pending() const { return pending_; }

  const std::vector<Tensor>& parameters() const { return parameters_; }
  const Shards& shards() const { return shards_; }
  /// Returns the tensors that the optimizer updates instead of the parameters: leaves, 1-D, in the
  /// same storage. Empty if nothing is shared out.
  const std::vector<Tensor>& parts() const { return parts_; }

 private:
  struct UnderWay {
    std::vector<std::size_t> bucket{};
    std::vector<std::vector<Payload>> parts{};  // by position in bucket, and rank: owned parts
    std::shared_ptr<Exchange> exchange{};
  };
  void make_parts();
  void agree_on_reached();
  void give_parts();
  void give_whole();
  Payload own_contribution(std::size_t index, bool took_part);
  Feedback feedback_for(std::size_t index);
  void send_next_bucket(bool took_part);
  UnderWay send_bucket(const std::vector<std::size_t>& bucket, bool took_part);
  void fold(UnderWay& sent);
  void add(const Payload& contribution, Tensor& sum) const;
  Payload neutral(const Tensor& parameter) const;

  Communicator& group_;
  std::vector<Tensor> parameters_;
  WireFormat wire_;
  Communicator& carrier_;       // for tensors on the parameters' device
  Communicator& wire_carrier_;  // for gradients
  Device on_wire_;              // the device of gradients when they are sent and received
  Shards shards_;
  std::vector<Tensor> parts_{};
  std::vector<uint64_t> first_counter_{};            // of the random numbers of a parameter
  std::vector<std::vector<std::size_t>> buckets_{};  // of parameters, last ones first
  std::vector<Tensor> sums_{};                       // of elements that this rank owns: dense, 1-D
  std::vector<uint8_t> reached_{};                   // by a batch of this rank
  std::vector<std::size_t> updated_{};               // those with new gradients by finish()
  /// The rounding errors for error feedback, and the loss scale of that time; 0: not yet computed.
  struct Rest {
    Tensor rest{};
    double loss_scale = 0;
  };
  std::vector<std::vector<Rest>> rests_{};  // by reduction of a step, and parameter
  // --- the present pass
  RandomKey key_{};
  double loss_scale_ = 1;
  std::unordered_map<const AutogradMeta*, std::size_t> index_of_{};
  std::vector<bool> complete_{};  // by parameter
  std::size_t sent_buckets_ = 0;
  std::deque<UnderWay> under_way_{};

  int64_t reductions_ = 0;
  std::size_t in_step_ = 0;  // reductions since the last step
  bool pending_ = false;
};

// Running statistics of batch norm on several processes. Each batch is normalized by its own
// statistics, as on one process. All batches of a step update the running statistics, in their
// order, on every rank.

class OrderedStatistics final : public StatisticsSink {
 public:
  /// Takes the model's buffers, in the same order on all ranks.
  OrderedStatistics(Communicator& group, std::vector<Tensor> buffers);

  void measured(const BatchStatistics& batch) override { measured_.push_back(batch); }
  void counted(const Tensor& batches) override { counted_.push_back(batches); }
  /// Updates the running statistics with the measurements of all ranks since the last call, in the
  /// order of the ranks. Collective.
  void apply();
  /// Drops all measurements.
  void drop() { measured_.clear(), counted_.clear(); }

 private:
  std::string packed() const;
  void apply_packed(std::string_view bytes) const;
  std::size_t position_of(const Tensor& buffer) const;

  Communicator& group_;
  std::vector<Tensor> buffers_;
  std::vector<BatchStatistics> measured_{};
  std::vector<Tensor> counted_{};
};

}  // namespace halftone::distributed
