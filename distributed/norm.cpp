// The norm of gradients; each rank may have only a part of them.
#include <algorithm>
#include <cmath>
#include <limits>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/math.h>
#include <halftone/core/memory.h>
#include <halftone/distributed/collectives.h>
#include <halftone/distributed/shards.h>

namespace halftone::distributed {

namespace {
/// The arithmetic of a p-norm.
struct Norm {
  double p;

  bool largest() const { return std::isinf(p); }
  Reduction reduction() const {
    return largest() ? Reduction::max : p == 2 ? Reduction::sum_of_squares : Reduction::sum;
  }
  /// Returns the values of a gradient that the reduction reads.
  Tensor terms(const Tensor& gradient) const {
    if (p == 2) return gradient;
    const NoGrad no_grad;
    const CasterScope no_cast(nullptr);
    const Tensor sizes = abs(cast(gradient, f64));
    return largest() || p == 1 ? sizes : pow(sizes, p);
  }
  /// Returns the sum or maximum of both; a maximum keeps NaN.
  double joined(double a, double b) const {
    if (!largest()) return a + b;
    return a != a || a > b ? a : b;
  }
  double root(double total) const {
    if (largest() || p == 1) return total;
    return p == 2 ? std::sqrt(total) : elementary::pow(total, 1 / p);
  }
};

/// Reduces each cut of a range to its own f64 number: `values`, 1-D.
void reduce_cuts(const Norm& norm, const Tensor& gradient, int64_t cut, const Tensor& values) {
  if (gradient.numel() == 0) return;
  const MemoryScope scope(MemoryUse::workspace);
  const Tensor terms = norm.terms(gradient);
  const int64_t rows = terms.numel() / cut, rest = terms.numel() % cut;
  const auto reduce = [&](int64_t count, int64_t length, int64_t first) {
    Tensor y = values.view_as({count, 1}, {1, 1}, values.offset() + first);
    backend_for(y).reduce(norm.reduction(),
                          terms.view_as({count, length}, {length, 1}, terms.offset() + first * cut),
                          y);
  };
  if (rows > 0) reduce(rows, cut, 0);
  if (rest > 0) reduce(1, rest, rows);
}
}  // namespace

Tensor norm_of(Communicator& group, const Shards& shards, std::span<const Tensor> gradients,
               bool parts, double p) {
  if (!(p > 0))
    fail<UsageError>("clip_grad_norm", "norm_type is ", p, ". Use a positive number, or infinity.");
  const Norm norm{p};
  // By rank, the values of its cuts, parameter after parameter; with whole gradients all are ours.
  std::vector<int64_t> counts(std::size_t(shards.ranks()), 0);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    for (int rank = 0; gradients[i].defined() && rank < shards.ranks(); ++rank)
      counts[std::size_t(rank)] += shards.cuts(i, rank);
  std::vector<Tensor> values;
  for (const int64_t count : counts) values.push_back(zeros({count}, f64));
  std::vector<int64_t> next(counts.size(), 0);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const Tensor here = gradients[i].to(Device::cpu());
    for (int rank = 0; rank < shards.ranks(); ++rank) {
      if (parts && rank != group.rank()) continue;
      const Shards::Range range = parts ? Shards::Range{0, here.numel()} : shards.range(i, rank);
      const int64_t cuts = shards.cuts(i, rank);
      int64_t& at = next[std::size_t(rank)];
      reduce_cuts(norm, part_of(here, range), Shards::cut_length(shards.size(i)),
                  values[std::size_t(rank)].view_as({cuts}, {1}, at));
      at += cuts;
    }
  }
  if (parts) values = all_gather(group, "norms of gradients", TrafficUse::control, values);
  double total = 0;
  std::ranges::fill(next, 0);
  for (std::size_t i = 0; i < gradients.size(); ++i)
    for (int rank = 0; gradients[i].defined() && rank < shards.ranks(); ++rank)
      for (int64_t cut = 0; cut < shards.cuts(i, rank); ++cut)
        total =
            norm.joined(total, values[std::size_t(rank)].data<double>()[next[std::size_t(rank)]++]);
  return scalar(norm.root(total), f64);
}

}  // namespace halftone::distributed
