// Device memory that is kept for reuse. Asking the driver costs a wait for the device, so blocks
// are cut from slabs, come in size classes (core/size_class.h), and go back to lists. A captured
// graph replays with the addresses it was captured with: what is allocated meanwhile comes from a
// pool of its own, which lives as long as the graph. Knows nothing of CUDA: where slabs come from
// is given.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

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

  /// At least `bytes`; null when the source has no more, after everything unused was given back.
  void* allocate(std::size_t bytes);
  void release(void* data, std::size_t bytes) noexcept;
  /// Gives slabs back that nothing uses: no tensor, and no captured graph.
  void trim() noexcept;

  /// From here on blocks come from a new pool; its number.
  int begin_pool();
  void end_pool();
  /// The memory of that pool serves everybody again.
  void dissolve(int pool) noexcept;

  struct Statistics {
    std::size_t reserved = 0;  // taken from the source
    std::size_t used = 0;      // handed out, rounded to size classes
    int64_t slabs = 0;         // taken from the source so far
  };
  Statistics statistics() const;

 private:
  struct Slab {
    std::size_t bytes, block_bytes;
    int pool;
  };
  using Slabs = std::map<std::byte*, Slab>;
  using FreeLists = std::array<std::vector<void*>, 4 * 64>;

  Slabs::iterator slab_of(void* data);
  void* new_slab(std::size_t bytes);
  void trim_locked() noexcept;

  Source source_;
  bool caching_;
  mutable std::mutex mutex_;
  Slabs slabs_;
  std::map<int, FreeLists> pools_;
  int current_ = 0, next_pool_ = 1;
  Statistics statistics_;
};

}  // namespace halftone::cuda
