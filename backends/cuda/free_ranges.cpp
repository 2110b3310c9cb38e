// Best fit over a sorted set of free ranges.
#include <halftone/backends/cuda/free_ranges.h>

#include <iterator>

namespace halftone::cuda {

void FreeRanges::mark_free(Ranges::iterator range) {
  range->second.is_free = true;
  free_.emplace(range->second.bytes, range->first);
}
void FreeRanges::mark_taken(Ranges::iterator range) {
  range->second.is_free = false;
  free_.erase({range->second.bytes, range->first});
}

void FreeRanges::add(std::byte* slab, std::size_t bytes) {
  mark_free(ranges_.insert_or_assign(slab, Range{bytes, slab, false}).first);
}

std::vector<std::byte*> FreeRanges::remove_unused() {
  std::vector<std::byte*> slabs;
  for (auto range = ranges_.begin(); range != ranges_.end();) {
    const auto next = std::next(range);
    const bool ends = next == ranges_.end() || next->second.slab != range->second.slab;
    if (range->second.is_free && range->first == range->second.slab && ends) {
      slabs.push_back(range->first);
      mark_taken(range);
      ranges_.erase(range);
    }
    range = next;
  }
  return slabs;
}

std::byte* FreeRanges::take(std::size_t bytes) {
  const auto best = free_.lower_bound({bytes, nullptr});
  if (best == free_.end()) return nullptr;
  const auto range = ranges_.find(best->second);
  mark_taken(range);
  if (const std::size_t rest = range->second.bytes - bytes; rest > 0) {
    range->second.bytes = bytes;
    mark_free(ranges_.emplace(range->first + bytes, Range{rest, range->second.slab, false}).first);
  }
  return range->first;
}

std::size_t FreeRanges::put_back(std::byte* block) {
  auto range = ranges_.find(block);
  const std::size_t bytes = range->second.bytes;
  mark_free(range);
  if (const auto next = std::next(range); next != ranges_.end() && join(range, next)) {
    mark_taken(range), mark_taken(next);
    range->second.bytes += next->second.bytes;
    ranges_.erase(next);
    mark_free(range);
  }
  if (range == ranges_.begin()) return bytes;
  if (const auto before = std::prev(range); join(before, range)) {
    mark_taken(before), mark_taken(range);
    before->second.bytes += range->second.bytes;
    ranges_.erase(range);
    mark_free(before);
  }
  return bytes;
}

void FreeRanges::absorb(FreeRanges&& other) {
  ranges_.merge(other.ranges_);
  free_.merge(other.free_);
}

std::vector<std::pair<void*, std::size_t>> FreeRanges::free() const {
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (const auto& [bytes, begin] : free_) blocks.emplace_back(begin, bytes);
  return blocks;
}

}  // namespace halftone::cuda
