// Best fit over a sorted set of free ranges.
#include <halftone/backends/cuda/block_cache.h>

#include <iterator>

#include <halftone/core/memory.h>

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

// Lists of free blocks per pool and size class, and ranges of larger slabs.

BlockCache::BlockCache(Source source, bool caching)
    : source_(std::move(source)), caching_(caching) {
  pools_[0];
}
BlockCache::~BlockCache() {
  for (const auto& [data, slab] : slabs_) source_.release(data);
}

BlockCache::Slabs::iterator BlockCache::slab_of(void* data) {
  return std::prev(slabs_.upper_bound(static_cast<std::byte*>(data)));
}

std::byte* BlockCache::add_slab(std::size_t bytes, std::size_t block_bytes, int pool) {
  auto* const slab = static_cast<std::byte*>(source_.allocate(bytes));
  if (!slab) return nullptr;
  slabs_[slab] = {bytes, block_bytes, pool};
  statistics_.reserved += bytes, ++statistics_.slabs;
  return slab;
}

void* BlockCache::take_small(std::size_t bytes, int pool) {
  SizeClass wanted = size_class(bytes, alignment);
  if (!caching_) wanted.bytes = bytes > 0 ? bytes : 1;
  std::vector<void*>& blocks = pools_[pool].lists[wanted.index];
  if (blocks.empty() || !caching_) {
    const std::size_t size = caching_ ? slab_bytes : wanted.bytes;
    std::byte* slab = add_slab(size, wanted.bytes, pool);
    if (!slab && current_ == 0) trim_locked(), slab = add_slab(size, wanted.bytes, pool);
    if (!slab) return nullptr;
    for (std::size_t at = size / wanted.bytes; at-- > 0;)
      blocks.push_back(slab + at * wanted.bytes);
  }
  void* const data = blocks.back();
  blocks.pop_back();
  statistics_.used += wanted.bytes;
  return data;
}

void* BlockCache::take_large(std::size_t bytes, int pool) {
  const std::size_t wanted = (bytes + granule - 1) / granule * granule;
  FreeRanges& ranges = pools_[pool].ranges;
  std::byte* data = ranges.take(wanted);
  if (!data) {
    std::size_t size = wanted <= largest_cut ? large_slab_bytes : wanted;
    std::byte* slab = add_slab(size, 0, pool);
    if (!slab) size = wanted, slab = add_slab(size, 0, pool);
    if (!slab && current_ == 0) trim_locked(), slab = add_slab(size, 0, pool);
    if (!slab) return nullptr;
    ranges.add(slab, size);
    data = ranges.take(wanted);
  }
  statistics_.used += wanted;
  return data;
}

void* BlockCache::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const int pool = std::this_thread::get_id() == filling_ ? current_ : 0;
  return caching_ && bytes > largest_shared ? take_large(bytes, pool) : take_small(bytes, pool);
}

void BlockCache::release(void* data, std::size_t /*bytes*/) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = slab_of(data);
  const Slab& slab = found->second;
  statistics_.used -= slab.block_bytes > 0
                          ? slab.block_bytes
                          : pools_[slab.pool].ranges.bytes_of(static_cast<std::byte*>(data));
  if (current_ != 0 && slab.pool != current_) kept_[current_].push_back(data);
  else put_back(found, data);
}

void BlockCache::put_back(Slabs::iterator found, void* data) noexcept {
  const Slab& slab = found->second;
  Pool& pool = pools_[slab.pool];
  if (slab.block_bytes == 0) pool.ranges.put_back(static_cast<std::byte*>(data));
  else if (caching_ || slab.pool != 0)
    pool.lists[size_class(slab.block_bytes, alignment).index].push_back(data);
  else give_slab_back(found);
}

void BlockCache::give_slab_back(Slabs::iterator slab) noexcept {
  statistics_.reserved -= slab->second.bytes;
  source_.release(slab->first);
  slabs_.erase(slab);
}

void BlockCache::trim() noexcept {
  const std::lock_guard lock(mutex_);
  trim_locked();
}

void BlockCache::trim_locked() noexcept {
  if (current_ != 0) return;
  Pool& pool = pools_[0];  // graphs use the free memory of their own pools in every replay
  for (std::byte* slab : pool.ranges.remove_unused()) give_slab_back(slabs_.find(slab));
  std::map<std::byte*, std::size_t> unused;  // bytes of free blocks per slab
  for (const std::vector<void*>& blocks : pool.lists)
    for (void* data : blocks) {
      const auto slab = slab_of(data);
      unused[slab->first] += slab->second.block_bytes;
    }
  const auto is_unused = [&](std::byte* slab) {
    const Slab& s = slabs_.at(slab);
    const auto found = unused.find(slab);
    return found != unused.end() && found->second == s.bytes / s.block_bytes * s.block_bytes;
  };
  for (std::vector<void*>& blocks : pool.lists)
    std::erase_if(blocks, [&](void* data) { return is_unused(slab_of(data)->first); });
  for (const auto& [slab, bytes] : unused)
    if (is_unused(slab)) give_slab_back(slabs_.find(slab));
}

void BlockCache::end_pool() {
  const std::lock_guard lock(mutex_);
  current_ = 0, filling_ = {};
}

int BlockCache::begin_pool() {
  const std::lock_guard lock(mutex_);
  current_ = next_pool_++;
  filling_ = std::this_thread::get_id();
  pools_[current_];
  return current_;
}

void BlockCache::dissolve(int pool) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto& [data, slab] : slabs_)
    if (slab.pool == pool) slab.pool = 0;
  const auto found = pools_.find(pool);
  if (found == pools_.end()) return;
  for (std::size_t i = 0; i < found->second.lists.size(); ++i) {
    const std::vector<void*>& from = found->second.lists[i];
    std::vector<void*>& to = pools_[0].lists[i];
    to.insert(to.end(), from.begin(), from.end());
  }
  pools_[0].ranges.absorb(std::move(found->second.ranges));
  pools_.erase(found);
  // Their own pool may belong to another graph, or this pool was dissolved while another was
  // filled.
  for (void* data : std::exchange(kept_[pool], {})) put_back(slab_of(data), data);
  kept_.erase(pool);
  if (!caching_) trim_locked();
}

BlockCache::Statistics BlockCache::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

std::vector<std::pair<void*, std::size_t>> BlockCache::free_blocks() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<void*, std::size_t>> blocks = pools_.at(0).ranges.free();
  for (const std::vector<void*>& list : pools_.at(0).lists)
    for (void* data : list) {
      const auto slab = std::prev(slabs_.upper_bound(static_cast<std::byte*>(data)));
      blocks.emplace_back(data, slab->second.block_bytes);
    }
  return blocks;
}

}  // namespace halftone::cuda
