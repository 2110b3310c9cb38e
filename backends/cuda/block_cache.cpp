// Lists of free blocks per pool and size class; small blocks share a slab of 2 MiB.
#include <halftone/backends/cuda/block_cache.h>

#include <halftone/core/size_class.h>

namespace halftone::cuda {

namespace {
constexpr std::size_t slab_bytes = std::size_t(2) << 20, largest_shared = slab_bytes / 2;
}

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

void* BlockCache::new_slab(std::size_t bytes) {
  void* slab = source_.allocate(bytes);
  if (slab || current_ != 0) return slab;
  trim_locked();
  return source_.allocate(bytes);
}

void* BlockCache::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  SizeClass wanted = size_class(bytes, alignment);
  if (!caching_) wanted.bytes = bytes > 0 ? bytes : 1;
  const int pool = std::this_thread::get_id() == filling_ ? current_ : 0;
  std::vector<void*>& blocks = pools_[pool][wanted.index];
  if (blocks.empty() || !caching_) {
    const bool shared = caching_ && wanted.bytes <= largest_shared;
    const std::size_t size = shared ? slab_bytes : wanted.bytes;
    auto* const slab = static_cast<std::byte*>(new_slab(size));
    if (!slab) return nullptr;
    slabs_[slab] = {size, wanted.bytes, pool};
    statistics_.reserved += size, ++statistics_.slabs;
    for (std::size_t at = size / wanted.bytes; at-- > 0;)
      blocks.push_back(slab + at * wanted.bytes);
  }
  void* const data = blocks.back();
  blocks.pop_back();
  statistics_.used += wanted.bytes;
  return data;
}

void BlockCache::release(void* data, std::size_t /*bytes*/) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = slab_of(data);
  statistics_.used -= found->second.block_bytes;
  if (current_ != 0 && found->second.pool != current_) kept_[current_].push_back(data);
  else put_back(found, data);
}

void BlockCache::put_back(Slabs::iterator found, void* data) noexcept {
  const Slab& slab = found->second;
  if (caching_ || slab.pool != 0) {
    pools_[slab.pool][size_class(slab.block_bytes, alignment).index].push_back(data);
    return;
  }
  statistics_.reserved -= slab.bytes;
  slabs_.erase(found);
  source_.release(data);
}

void BlockCache::trim() noexcept {
  const std::lock_guard lock(mutex_);
  trim_locked();
}

void BlockCache::trim_locked() noexcept {
  if (current_ != 0) return;
  FreeLists& lists = pools_[0];  // graphs use what is free in their own pools, with every replay
  std::map<std::byte*, std::size_t> unused;  // bytes of free blocks per slab
  for (const std::vector<void*>& blocks : lists)
    for (void* data : blocks) {
      const auto slab = slab_of(data);
      unused[slab->first] += slab->second.block_bytes;
    }
  const auto is_unused = [&](std::byte* slab) {
    const Slab& s = slabs_.at(slab);
    const auto found = unused.find(slab);
    return found != unused.end() && found->second == s.bytes / s.block_bytes * s.block_bytes;
  };
  for (std::vector<void*>& blocks : lists)
    std::erase_if(blocks, [&](void* data) { return is_unused(slab_of(data)->first); });
  for (auto slab = slabs_.begin(); slab != slabs_.end();) {
    if (!is_unused(slab->first)) {
      ++slab;
      continue;
    }
    statistics_.reserved -= slab->second.bytes;
    source_.release(slab->first);
    slab = slabs_.erase(slab);
  }
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
  for (std::size_t i = 0; i < found->second.size(); ++i) {
    std::vector<void*>& to = pools_[0][i];
    to.insert(to.end(), found->second[i].begin(), found->second[i].end());
  }
  pools_.erase(found);
  // Their own pool may be that of another graph, or this one was dissolved while one was filled.
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
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (const std::vector<void*>& list : pools_.at(0))
    for (void* data : list) {
      const auto slab = std::prev(slabs_.upper_bound(static_cast<std::byte*>(data)));
      blocks.emplace_back(data, slab->second.block_bytes);
    }
  return blocks;
}

}  // namespace halftone::cuda
