// The table of owners, and exchanges of ranges.
#include <halftone/distributed/shards.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <halftone/autograd/ops.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/math.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>
#include <halftone/distributed/collectives.h>

namespace halftone::distributed {

namespace {
int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::vector<int64_t> sizes_of(std::span<const Tensor> parameters) {
  std::vector<int64_t> sizes;
  for (const Tensor& x : parameters) sizes.push_back(x.numel());
  return sizes;
}
}  // namespace

int64_t Shards::cut_length(int64_t size) {
  constexpr int64_t least = 1024, most = 16384;
  return std::clamp(divided_up(divided_up(size, 16), least) * least, least, most);
}

/// Cuts are dealt out evenly; leftover cuts go to the ranks that have the fewest elements.
Shards::Shards(std::vector<int64_t> sizes, int ranks)
    : ranks_(ranks), sizes_(std::move(sizes)), elements_(std::size_t(ranks), 0) {
  std::vector<int> by_elements(elements_.size());
  for (const int64_t size : sizes_) {
    const int64_t cut = cut_length(size), cuts = divided_up(size, cut);
    std::vector<int64_t> own(elements_.size(), cuts / ranks);
    std::iota(by_elements.begin(), by_elements.end(), 0);
    std::ranges::stable_sort(by_elements, {},
                             [&](int rank) { return elements_[std::size_t(rank)]; });
    for (int64_t i = 0; i < cuts % ranks; ++i) ++own[std::size_t(by_elements[std::size_t(i)])];
    int64_t begin = 0;
    for (std::size_t rank = 0; rank < own.size(); ++rank) {
      const int64_t end = std::min(size, begin + own[rank] * cut);
      ranges_.push_back({begin, end - begin});
      elements_[rank] += end - begin;
      begin = end;
    }
  }
}

Shards::Shards(std::span<const Tensor> parameters, int ranks)
    : Shards(sizes_of(parameters), ranks) {}

int64_t Shards::cuts(std::size_t parameter, int rank) const {
  return divided_up(range(parameter, rank).count, cut_length(size(parameter)));
}

Tensor part_of(const Tensor& x, Shards::Range range) {
  return x.detach().view_as({range.count}, {1}, x.offset() + range.begin);
}

void exchange_ranges(Communicator& group, const Shards& shards, std::string_view what,
                     TrafficUse use, std::span<const std::size_t> which,
                     std::span<const Tensor> whole) {
  const MemoryScope scope(MemoryUse::communication);
  std::vector<Message> out, in;
  std::vector<std::pair<Tensor, Tensor>> arriving;  // not carried; its destination
  for (std::size_t k = 0; k < which.size(); ++k)
    for (int step = 0; step < group.size(); ++step) {
      const int peer = (group.rank() + step) % group.size();
      const Tensor part = part_of(whole[k], shards.range(which[k], peer));
      if (part.numel() == 0) continue;
      Tensor here = part;
      const bool carried = group.carries(part.device());
      if (!carried) here = step == 0 ? part.to(Device::cpu()) : empty(part.shape(), part.dtype());
      if (step > 0) {
        in.push_back({peer, here});
        if (!carried) arriving.emplace_back(part, here);
      } else {
        for (int other = 1; other < group.size(); ++other)
          out.push_back({(group.rank() + other) % group.size(), here});
      }
    }
  group.exchange(what, use, out, in)->wait();
  for (const auto& [part, here] : arriving) copy_into(part, here);
  for (const Tensor& x : whole) mark_written(x);
}

Tensor gather_on_rank_0(Communicator& group, const Shards& shards, std::string_view what,
                        std::size_t parameter, const Tensor& own, const Shape& shape) {
  const MemoryScope scope(MemoryUse::communication);
  std::vector<Message> out, in;
  Tensor whole;
  if (group.rank() != 0) {
    if (own.numel() > 0) out.push_back({0, own.to(Device::cpu())});
  } else {
    whole = empty(shape, own.dtype());
    for (int peer = 0; peer < group.size(); ++peer) {
      const Tensor part = part_of(whole, shards.range(parameter, peer));
      if (peer == 0) copy_into(part, own);
      else if (part.numel() > 0) in.push_back({peer, part});
    }
  }
  group.exchange(what, TrafficUse::state, out, in)->wait();
  return whole;
}

Tensor scatter_from_rank_0(Communicator& group, const Shards& shards, std::string_view what,
                           std::size_t parameter, const Tensor& whole, DType dtype) {
  const MemoryScope scope(MemoryUse::communication);
  std::vector<Message> out, in;
  Tensor own;
  if (group.rank() == 0) {
    const Tensor here = views::contiguous(whole.detach()).to(Device::cpu());
    own = part_of(here, shards.range(parameter, 0)).clone();  // a copy: the whole can be freed
    for (int peer = 1; peer < group.size(); ++peer)
      if (const Tensor part = part_of(here, shards.range(parameter, peer)); part.numel() > 0)
        out.push_back({peer, part});
  } else {
    own = empty({shards.range(parameter, group.rank()).count}, dtype);
    if (own.numel() > 0) in.push_back({0, own});
  }
  group.exchange(what, TrafficUse::state, out, in)->wait();
  return own;
}

// The norm of gradients; each rank may have only a part of them.

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
