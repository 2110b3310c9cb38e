// The distribution of the optimizer over ranks (ZeRO-1: Rajbhandari et al. 2020, "ZeRO: memory
// optimizations toward training trillion parameter models"). Each element of each parameter has one
// owner, a rank that adds its gradients, stores its optimizer state and updates it. A rank's part
// of a parameter is one range, possibly empty. Ranges start at multiples of a cut, which depends
// only on the parameter's size. So a kernel computes the same bits for a part and for the whole.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include <halftone/core/communicator.h>

namespace halftone::distributed {

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
  /// Returns the elements of all parameters that a rank owns.
  int64_t elements(int rank) const { return elements_.at(std::size_t(rank)); }
  /// Returns the number of cuts in a range; the last may be short.
  int64_t cuts(std::size_t parameter, int rank) const;

  /// Returns about a sixteenth of `size` elements; a multiple of 1024, up to 16384.
  static int64_t cut_length(int64_t size);

 private:
  int ranks_;
  std::vector<int64_t> sizes_, elements_;
  std::vector<Range> ranges_{};  // by parameter and rank
};

/// Returns a row-major tensor's elements of a range, 1-D, without history; shares storage.
Tensor part_of(const Tensor& x, Shards::Range range);

// --- exchanges of ranges: all ranks make the same calls. A tensor that belongs to a parameter is
// row-major and of its size; of any dtype, and on any device.

/// Sends the own range of each tensor and writes all other ranges. whole[k] belongs to parameter
/// which[k].
void exchange_ranges(Communicator& group, const Shards& shards, std::string_view what,
                     TrafficUse use, std::span<const std::size_t> which,
                     std::span<const Tensor> whole);
/// Returns each rank's range (1-D), joined on rank 0, on the host; undefined on other ranks.
Tensor gather_on_rank_0(Communicator& group, const Shards& shards, std::string_view what,
                        std::size_t parameter, const Tensor& own, const Shape& shape);
/// Returns the own range of a tensor that rank 0 has: 1-D, on the host.
Tensor scatter_from_rank_0(Communicator& group, const Shards& shards, std::string_view what,
                           std::size_t parameter, const Tensor& whole, DType dtype);

/// Returns the p-norm of all gradients as one vector: an f64 scalar on the host. gradients[i] is
/// undefined if parameter i has none. They are whole gradients, equal on all ranks, or parts. Sums
/// are of cuts, in f64, added in the order of parameters and cuts, so the bits do not depend on the
/// number of ranks. Throws UsageError for p that is not positive. Collective for parts.
Tensor norm_of(Communicator& group, const Shards& shards, std::span<const Tensor> gradients,
               bool parts, double p);

}  // namespace halftone::distributed
