// The table of owners, and exchanges of ranges.
#include <halftone/distributed/shards.h>

#include <algorithm>
#include <numeric>

#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/memory.h>
#include <halftone/core/tensor.h>

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

}  // namespace halftone::distributed
