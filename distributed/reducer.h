// From each batch's gradients, on whatever ranks, to the sum that everybody steps with:
//
//   sum = ((c_0 + c_1) + c_2) + ...     c_j: batch j's gradient after the wire
//
// A step has K batches, numbered from 0; rank r of N computes batches r, r + N, r + 2 N, ... A
// reduction adds N of them, so it takes K / N. Each element of a parameter has an owner, to whom
// all ranks send theirs, and who adds in f32 (f64 for f64) in the order of the batches: neither N
// nor an engine's algorithm can change a bit, and a short wire rounds once, never per hop. Where a
// batch has no gradient, -0.0 stands for it, which changes no sum. As a listener of the backward
// pass it sends gradients while the pass goes on.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include <halftone/autograd/gradient_listener.h>
#include <halftone/core/communicator.h>
#include <halftone/distributed/options.h>

namespace halftone::distributed {

class Reducer final : public GradientListener {
 public:
  /// The parameters, which may be on a GPU, in one order on all ranks. Throws UsageError for
  /// options out of range.
  Reducer(Communicator& group, std::vector<Tensor> parameters, const Options& options);

  /// During the backward pass of this rank's batch, before add_batches(): a parameter's gradient is
  /// complete. Buckets leave in one order on all ranks, whatever the order of completion.
  void on_gradient(AutogradMeta& leaf) override;
  /// Takes the gradients of this rank's batch out of the parameters and adds those of all ranks to
  /// the sums. `took_part`: false for a rank that had no batch. Collective.
  void add_batches(bool took_part);
  /// Gives every parameter that a batch reached the whole sum as its gradient, f32 (f64). The sums
  /// begin anew. Collective.
  void finish();
  /// Forgets the sums.
  void drop();
  /// Whether there are sums that finish() would hand out.
  bool pending() const { return pending_; }

 private:
  struct Range {
    int64_t begin, count;
  };
  struct UnderWay {
    std::vector<std::size_t> bucket{};
    std::vector<std::vector<Tensor>> parts{};  // by place in the bucket and rank: of what is owned
    std::shared_ptr<Exchange> exchange{};
  };
  Range range_of(const Tensor& parameter, int rank) const;
  Tensor own_contribution(std::size_t index, bool took_part);
  void send_next_bucket(bool took_part);
  UnderWay send_bucket(const std::vector<std::size_t>& bucket, bool took_part);
  void fold(UnderWay& sent);
  void add(const Tensor& contribution, Tensor& sum) const;
  Tensor neutral(int64_t count, DType dtype);

  Communicator& group_;
  std::vector<Tensor> parameters_;
  Options options_;
  std::vector<std::vector<std::size_t>> buckets_{};  // of parameters, last ones first
  std::vector<Tensor> sums_{};                       // of what this rank owns: dense, 1-D
  std::vector<uint8_t> reached_{};                   // by one of this rank's batches
  std::vector<Tensor> neutral_{};                    // -0.0, by dtype
  // --- of the present pass
  std::unordered_map<const AutogradMeta*, std::size_t> index_of_{};
  std::vector<bool> complete_{};  // by parameter
  std::size_t sent_buckets_ = 0;
  std::deque<UnderWay> under_way_{};

  int64_t reductions_ = 0;
  bool pending_ = false;
};

}  // namespace halftone::distributed
