// Who keeps what of the optimizer (ZeRO-1: Rajbhandari et al. 2020, "ZeRO: memory optimizations
// toward training trillion parameter models"): each element of each parameter has one owner, a
// rank, that adds up its gradients, keeps its optimizer state and updates it. What a rank owns of a
// parameter is one range, perhaps empty. Ranges begin at multiples of a cut, which depends on the
// parameter's size alone, so that no kernel computes another bit for a part than for the whole.
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
  /// The same table on every rank, from the numbers of the parameters' elements.
  Shards(std::vector<int64_t> sizes, int ranks);
  Shards(std::span<const Tensor> parameters, int ranks);

  int ranks() const { return ranks_; }
  std::size_t parameters() const { return sizes_.size(); }
  int64_t size(std::size_t parameter) const { return sizes_.at(parameter); }
  /// Of the parameter's elements in row-major order. Ranks' ranges follow each other.
  Range range(std::size_t parameter, int rank) const {
    return ranges_.at(parameter * std::size_t(ranks_) + std::size_t(rank));
  }
  /// Of all parameters.
  int64_t elements(int rank) const { return elements_.at(std::size_t(rank)); }
  /// The cuts in a range, the last of which may be short.
  int64_t cuts(std::size_t parameter, int rank) const;

  /// About a sixteenth of so many elements; a multiple of 1024, up to 16384.
  static int64_t cut_length(int64_t size);

 private:
  int ranks_;
  std::vector<int64_t> sizes_, elements_;
  std::vector<Range> ranges_{};  // by parameter and rank
};

/// A row-major tensor's elements of a range, 1-D, without history; shares storage.
Tensor part_of(const Tensor& x, Shards::Range range);

// --- ranges on their way: all ranks call these alike. A tensor that belongs to a parameter is
// row-major and of its size; of any dtype, and on any device.

/// Of each tensor the own range is there; all others are written. whole[k] belongs to parameter
/// which[k].
void exchange_ranges(Communicator& group, const Shards& shards, std::string_view what,
                     TrafficUse use, std::span<const std::size_t> which,
                     std::span<const Tensor> whole);
/// Each rank's range (1-D), put together on rank 0, on the host; undefined elsewhere.
Tensor gather_on_rank_0(Communicator& group, const Shards& shards, std::string_view what,
                        std::size_t parameter, const Tensor& own, const Shape& shape);
/// The own range of a tensor that rank 0 has: 1-D, on the host.
Tensor scatter_from_rank_0(Communicator& group, const Shards& shards, std::string_view what,
                           std::size_t parameter, const Tensor& whole, DType dtype);

/// The p-norm of all gradients as one vector: an f64 scalar on the host. By parameter, undefined
/// where there is none: whole ones that all ranks have, or parts. Sums are of cuts, in f64, and
/// added in the order of the parameters and cuts, so that every number of ranks gives the same
/// bits. Throws UsageError for p that is not positive. Collective for parts.
Tensor norm_of(Communicator& group, const Shards& shards, std::span<const Tensor> gradients,
               bool parts, double p);

}  // namespace halftone::distributed
