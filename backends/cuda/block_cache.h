// Cuts blocks of any size from slabs: the smallest free range that is large enough gives its
// beginning, and neighboring free ranges are joined again. Ranges of different slabs are never
// joined, even if their addresses are adjacent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

namespace halftone::cuda {

class FreeRanges {
 public:
  /// Adds a slab that is all free.
  void add(std::byte* slab, std::size_t bytes);
  /// Removes slabs that are all free. Returns where they begin.
  std::vector<std::byte*> remove_unused();

  /// Takes `bytes` from the best range; null if none is large enough.
  std::byte* take(std::size_t bytes);
  /// Gives back a block of take(). Returns its bytes.
  std::size_t put_back(std::byte* block);
  /// Takes over all ranges of the other, free and taken.
  void absorb(FreeRanges&& other);

  std::size_t bytes_of(std::byte* block) const { return ranges_.at(block).bytes; }
  /// Returns addresses and bytes of the free ranges.
  std::vector<std::pair<void*, std::size_t>> free() const;

 private:
  struct Range {
    std::size_t bytes;
    std::byte* slab;
    bool is_free;
  };
  using Ranges = std::map<std::byte*, Range>;

  void mark_free(Ranges::iterator range);
  void mark_taken(Ranges::iterator range);
  /// Returns whether b, which follows a, can be joined with it.
  static bool join(Ranges::iterator a, Ranges::iterator b) {
    return a->second.slab == b->second.slab && a->second.is_free && b->second.is_free;
  }

  Ranges ranges_;  // all of every slab
  std::set<std::pair<std::size_t, std::byte*>> free_;
};

// Device memory that is kept for reuse. A request to the driver costs a wait for the device, so
// blocks are cut from slabs. Blocks up to 1 MiB have size classes (core/memory.h), one class
// per slab; larger ones are cut where a slab has room (FreeRanges), as in PyTorch's allocator. A
// captured graph replays with the addresses of its capture. So memory allocated during the capture
// comes from a separate pool, which lives as long as the graph. Older blocks that are released
// during the capture are kept with that pool, because the recorded work may use them. This class
// does not use CUDA: the caller supplies the source of slabs.

class BlockCache {
 public:
  struct Source {
    std::function<void*(std::size_t bytes)> allocate;  // returns null when memory runs out
    std::function<void(void*)> release;
  };
  /// caching off: every block is a separate slab and is given back at once (those of a captured
  /// graph with the graph), for tools that check the bounds of allocations
  /// (HALFTONE_CUDA_CACHE=off).
  explicit BlockCache(Source source, bool caching = true);
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  static constexpr std::size_t alignment = 512;
  /// The largest block that shares a slab of `slab_bytes` with blocks of its size class. Larger
  /// ones are rounded to multiples of `granule`. Up to `largest_cut` they get a slab of
  /// `large_slab_bytes` if no slab has room; above, a slab of their own size.
  static constexpr std::size_t slab_bytes = std::size_t(2) << 20, largest_shared = slab_bytes / 2,
                               granule = std::size_t(128) << 10, large_slab_bytes = 10 * slab_bytes,
                               largest_cut = large_slab_bytes / 2;

  /// Returns a block of at least `bytes`; null if the source has no more. Before that it gives all
  /// unused memory back (not between begin_pool() and end_pool(): giving memory back waits for the
  /// device, which a stream under capture does not allow).
  void* allocate(std::size_t bytes);
  void release(void* data, std::size_t bytes) noexcept;
  /// Gives slabs back to the source if no tensor and no captured graph uses them. Does nothing
  /// between begin_pool() and end_pool().
  void trim() noexcept;

  /// From now on, this thread's blocks come from a new pool; returns its number. Blocks of other
  /// pools that any thread releases before end_pool() stay unused until dissolve().
  int begin_pool();
  void end_pool();
  /// Makes the pool's memory, and the blocks kept with it, available to all again.
  void dissolve(int pool) noexcept;

  struct Statistics {
    std::size_t reserved = 0;  // taken from the source
    std::size_t used = 0;      // in use, rounded to size classes or granules
    int64_t slabs = 0;         // taken from the source so far
  };
  Statistics statistics() const;

  /// Returns addresses and bytes of the free blocks that no captured graph uses. For tests.
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
  std::map<int, std::vector<void*>> kept_;  // by pool: blocks released while it was filled
  int current_ = 0, next_pool_ = 1;
  std::thread::id filling_;  // the thread whose blocks come from the current pool
  Statistics statistics_;
};

}  // namespace halftone::cuda
