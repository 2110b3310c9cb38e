// From each batch's gradients, on whatever ranks, to the sum that a step is made with:
//
//   sum = ((c_0 + c_1) + c_2) + ...     c_j: batch j's gradient after the wire
//
// A step has K batches, numbered from 0; rank r of N computes batches r, r + N, r + 2 N, ... A
// reduction adds N of them, so it takes K / N. Each element of a parameter has an owner, to whom
// all ranks send theirs, and who adds in f32 (f64 for f64) in the order of the batches: neither N
// nor an engine's algorithm can change a bit, and a short wire rounds once, never per hop. Where a
// batch has no gradient, -0.0 stands for it, which changes no sum. As a listener of the backward
// pass it sends gradients while the pass goes on. The owner updates its elements, too (shards.h),
// and sends them to all; or the sums go to all, and each rank updates everything.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include <halftone/autograd/gradient_listener.h>
#include <halftone/core/communicator.h>
#include <halftone/distributed/options.h>
#include <halftone/distributed/shards.h>

namespace halftone::distributed {

class Reducer final : public GradientListener {
 public:
  /// The parameters, which may be on a GPU, in one order on all ranks. Throws UsageError for
  /// options out of range, and for parameters that are not row-major where they are to be shared
  /// out.
  Reducer(Communicator& group, std::vector<Tensor> parameters, const Options& options);
  const WireFormat& wire() const { return wire_; }

  /// Before the gradients of this rank's batch: the key of what a wire draws for it, and what its
  /// loss is multiplied by.
  void begin_batch(RandomKey key, double loss_scale) { key_ = key, loss_scale_ = loss_scale; }
  /// During the backward pass of this rank's batch, before add_batches(): a parameter's gradient is
  /// complete. Buckets leave in one order on all ranks, whatever the order of completion.
  void on_gradient(AutogradMeta& leaf) override;
  /// Takes the gradients of this rank's batch out of the parameters and adds those of all ranks to
  /// the sums. `took_part`: false for a rank that had no batch. Collective.
  void add_batches(bool took_part);
  /// Gives every parameter that a batch reached, or this rank's part of it, the sum as its
  /// gradient, f32 (f64). The sums begin anew. Collective.
  void finish();
  /// After an update of the parts: all ranks get all of the parameters that the last finish() gave
  /// gradients to. Collective; without parts it does nothing.
  void gather_parameters();
  /// Forgets the sums, and gradients that have not been added to them.
  void drop();
  /// Whether there are sums that finish() would hand out.
  bool pending() const { return pending_; }

  const std::vector<Tensor>& parameters() const { return parameters_; }
  const Shards& shards() const { return shards_; }
  /// What the optimizer is to update in the place of the parameters: leaves, 1-D, in the same
  /// storage. None where nothing is shared out.
  const std::vector<Tensor>& parts() const { return parts_; }

 private:
  struct UnderWay {
    std::vector<std::size_t> bucket{};
    std::vector<std::vector<Payload>> parts{};  // by place in the bucket and rank: of what is owned
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
  Communicator& carrier_;       // of what is on the parameters' device
  Communicator& wire_carrier_;  // of gradients
  Device on_wire_;              // where these are when they leave and arrive
  Shards shards_;
  std::vector<Tensor> parts_{};
  std::vector<uint64_t> first_counter_{};            // of what is drawn for a parameter
  std::vector<std::vector<std::size_t>> buckets_{};  // of parameters, last ones first
  std::vector<Tensor> sums_{};                       // of what this rank owns: dense, 1-D
  std::vector<uint8_t> reached_{};                   // by one of this rank's batches
  std::vector<std::size_t> updated_{};               // what the last finish() gave gradients to
  /// Of error feedback; under which loss scale it was made, 0: not yet.
  struct Rest {
    Tensor rest{};
    double loss_scale = 0;
  };
  std::vector<std::vector<Rest>> rests_{};  // by reduction of a step, and parameter
  // --- of the present pass
  RandomKey key_{};
  double loss_scale_ = 1;
  std::unordered_map<const AutogradMeta*, std::size_t> index_of_{};
  std::vector<bool> complete_{};  // by parameter
  std::size_t sent_buckets_ = 0;
  std::deque<UnderWay> under_way_{};

  int64_t reductions_ = 0;
  std::size_t in_step_ = 0;  // of them, since the last step
  bool pending_ = false;
};

}  // namespace halftone::distributed
