// Device memory that is kept for reuse. Asking the driver costs a wait for the device, so blocks
// are cut from slabs: those up to 1 MiB in size classes (core/size_class.h), of which a slab holds
// one, larger ones wherever a slab has room (free_ranges.h), as PyTorch's allocator does. A
// captured graph replays with the addresses it was captured with: what is allocated meanwhile comes
// from a pool of its own, which lives as long as the graph, and what others had before and release
// meanwhile is kept beside that pool: the work that is recorded may use it. Knows nothing of CUDA:
// where slabs come from is given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <halftone/backends/cuda/free_ranges.h>

namespace halftone::cuda {

class BlockCache {
 public:
  struct Source {
    std::function<void*(std::size_t bytes)> allocate;  // null if there is no more
    std::function<void(void*)> release;
  };
  /// caching off: every block is a slab of its own and goes back at once (those of a captured graph
  /// with the graph), for tools that watch the bounds of allocations (HALFTONE_CUDA_CACHE=off).
  explicit BlockCache(Source source, bool caching = true);
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  static constexpr std::size_t alignment = 512;
  /// The largest block that shares a slab of `slab_bytes` with blocks of its size class. Larger
  /// ones are rounded to multiples of `granule`; up to `largest_cut` they get a slab of
  /// `large_slab_bytes`, if no slab has room, beyond that one of their own size.
  static constexpr std::size_t slab_bytes = std::size_t(2) << 20, largest_shared = slab_bytes / 2,
                               granule = std::size_t(128) << 10, large_slab_bytes = 10 * slab_bytes,
                               largest_cut = large_slab_bytes / 2;

  /// At least `bytes`; null when the source has no more, after everything unused was given back
  /// (not between begin_pool() and end_pool(): giving memory back waits for the device, which a
  /// stream that is captured does not allow).
  void* allocate(std::size_t bytes);
  void release(void* data, std::size_t bytes) noexcept;
  /// Gives slabs back that nothing uses: no tensor, and no captured graph. Between begin_pool()
  /// and end_pool() it does nothing.
  void trim() noexcept;

  /// From here on blocks that this thread asks for come from a new pool; its number. Blocks of
  /// other pools that anybody releases before end_pool() stay unused until dissolve().
  int begin_pool();
  void end_pool();
  /// The memory of that pool, and what was kept beside it, serves everybody again.
  void dissolve(int pool) noexcept;

  struct Statistics {
    std::size_t reserved = 0;  // taken from the source
    std::size_t used = 0;      // handed out, rounded to size classes or granules
    int64_t slabs = 0;         // taken from the source so far
  };
  Statistics statistics() const;

  /// What nobody has of the memory outside of graphs: addresses and bytes. For tests.
  std::vector<std::pair<void*, std::size_t>> free_blocks() const;

 private:
  struct Slab {
    std::size_t bytes, block_bytes;  // block_bytes 0: cut by the ranges of its pool
    int pool;
  };
  using Slabs = std::map<std::byte*, Slab>;
  struct Pool {
    std::array<std::vector<void*>, 4 * 64> lists;  // free blocks of a size class
    FreeRanges ranges;
  };

  Slabs::iterator slab_of(void* data);
  std::byte* add_slab(std::size_t bytes, std::size_t block_bytes, int pool);
  void* take_small(std::size_t bytes, int pool);
  void* take_large(std::size_t bytes, int pool);
  void put_back(Slabs::iterator slab, void* data) noexcept;
  void trim_locked() noexcept;
  void give_slab_back(Slabs::iterator slab) noexcept;

  Source source_;
  bool caching_;
  mutable std::mutex mutex_;
  Slabs slabs_;
  std::map<int, Pool> pools_;
  std::map<int, std::vector<void*>> kept_;  // beside a pool: released while it was filled
  int current_ = 0, next_pool_ = 1;
  std::thread::id filling_;  // the thread whose blocks come from the current pool
  Statistics statistics_;
};

}  // namespace halftone::cuda
