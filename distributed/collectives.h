// Calls of all ranks, and the ranges of a model that each rank owns.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/communicator.h>
#include <halftone/core/named_tensors.h>

namespace halftone::distributed {

// Collective calls of all ranks, made of exchanges. Nothing is added here; callers add what they
// receive in the order of the ranks. All ranks make the same calls in the same order. `what` names
// the call in messages about ranks that do not arrive.

/// Returns each rank's tensor, by rank; the entry of this rank is `own` itself. All ranks must pass
/// dense tensors on the host, of one shape and dtype; this is not checked.
std::vector<Tensor> all_gather(Communicator& group, std::string_view what, TrafficUse use,
                               const Tensor& own);
/// The same for tensors of different sizes, which all ranks know. `all` has one tensor per rank.
/// Sends this rank's tensor, writes what the other ranks sent into theirs, and returns all of them.
std::vector<Tensor> all_gather(Communicator& group, std::string_view what, TrafficUse use,
                               std::vector<Tensor> all);
/// Returns each rank's text, by rank.
std::vector<std::string> all_gather_texts(Communicator& group, std::string_view what,
                                          std::string_view own);
/// Returns the largest number of all ranks.
int64_t largest(Communicator& group, std::string_view what, int64_t own);

/// Returns rank 0's text.
std::string broadcast_text(Communicator& group, std::string_view what, std::string_view text);
int64_t broadcast_number(Communicator& group, std::string_view what, int64_t own);
/// Returns rank 0's tensor, of the dtype and shape in `info`. On rank 0 that is `own`; on other
/// ranks `own` is ignored, and the result is row-major and on the host.
Tensor broadcast_tensor(Communicator& group, std::string_view what, const Tensor& own,
                        const TensorInfo& info);
/// Returns name, dtype and shape of rank 0's tensors.
std::vector<TensorInfo> broadcast_infos(Communicator& group, std::string_view what,
                                        const NamedTensors& tensors);
/// Returns rank 0's tensors, each as by broadcast_tensor(). The other ranks' argument is ignored.
NamedTensors broadcast(Communicator& group, std::string_view what, const NamedTensors& tensors);

/// Runs a function on rank 0 only. If it throws, all ranks throw the same kind of Error with the
/// same message.
void on_rank_0(Communicator& group, std::string_view what, const std::function<void()>& body);

/// Throws UsageError on every rank if a rank's text differs from rank 0's. The error names both
/// values of the first different line, which has the form "name value".
void require_agreement(Communicator& group, std::string_view what, std::string_view text);

// The distribution of the optimizer over ranks (ZeRO-1: Rajbhandari et al. 2020, "ZeRO: memory
// optimizations toward training trillion parameter models"). Each element of each parameter has one
// owner, a rank that adds its gradients, stores its optimizer state and updates it. A rank's part
// of a parameter is one range, possibly empty. Ranges start at multiples of a cut, which depends
// only on the parameter's size. So a kernel computes the same bits for a part and for the whole.

class Shards {
 public:
  struct Range {
    int64_t begin = 0, count = 0;  // elements
    bool operator==(const Range&) const = default;
  };
  /// Computes the same table on every rank, from the numbers of elements of the parameters.
  Shards(std::vector<int64_t> sizes, int ranks);
  Shards(std::span<const Tensor> parameters, int ranks);

  int ranks() const { return ranks_; }
  std::size_t parameters() const { return sizes_.size(); }
  int64_t size(std::size_t parameter) const { return sizes_.at(parameter); }
  /// Returns the range of a rank in row-major order. The ranges of the ranks follow each other.
  Range range(std::size_t parameter, int rank) const {
    return ranges_.at(parameter * std::size_t(ranks_) + std::size_t(rank));
  }
  /// Returns the number of elements that a rank owns, of all parameters together.
  int64_t elements(int rank) const { return elements_.at(std::size_t(rank)); }
  /// Returns the number of cuts in a rank's range of a parameter; the last may be short.
  int64_t cuts(std::size_t parameter, int rank) const;

  /// Returns the number of elements of a cut: about size / 16, a multiple of 1024, at most 16384.
  static int64_t cut_length(int64_t size);

 private:
  int ranks_;
  std::vector<int64_t> sizes_, elements_;
  std::vector<Range> ranges_{};  // by parameter and rank
};

/// Returns a range of a row-major tensor as a 1-D tensor that shares its storage, without autograd.
Tensor part_of(const Tensor& x, Shards::Range range);

// --- exchanges of ranges: all ranks make the same calls. A tensor that belongs to a parameter is
// row-major and of its size; of any dtype, and on any device.

/// Sends this rank's range of each tensor, and writes the other ranks' ranges into the tensor.
/// whole[k] belongs to parameter which[k].
void exchange_ranges(Communicator& group, const Shards& shards, std::string_view what,
                     TrafficUse use, std::span<const std::size_t> which,
                     std::span<const Tensor> whole);
/// For a tensor, such as a coded state, that stores `numbers` numbers per block of `elements`
/// elements of a parameter: converts a range of the parameter to the range of that tensor. The
/// range must begin at the start of a block.
struct PerBlock {
  int64_t elements = 1, numbers = 1;
  Shards::Range operator()(Shards::Range range) const;
};
/// Joins each rank's range `own` (1-D). Returns the whole on rank 0's host; undefined elsewhere.
Tensor gather_on_rank_0(Communicator& group, const Shards& shards, std::string_view what,
                        std::size_t parameter, const Tensor& own, const Shape& shape,
                        PerBlock per = {});
/// Returns this rank's range of a tensor that rank 0 has: 1-D, on the host.
Tensor scatter_from_rank_0(Communicator& group, const Shards& shards, std::string_view what,
                           std::size_t parameter, const Tensor& whole, DType dtype,
                           PerBlock per = {});

/// Returns the p-norm of all gradients as one vector: an f64 scalar on the host. gradients[i] is
/// undefined if parameter i has none. With `parts`, they are this rank's parts; otherwise whole and
/// equal on all ranks. Sums of cuts, in f64, are added in the order of parameters and cuts, so the
/// number of ranks changes no bit. Throws UsageError for p that is not positive. Collective for
/// parts.
Tensor norm_of(Communicator& group, const Shards& shards, std::span<const Tensor> gradients,
               bool parts, double p);

}  // namespace halftone::distributed
