// The cache: one list of free blocks for each size class. Large blocks are aligned to 2 MiB and
// offered to transparent huge pages, which avoids most TLB misses of a training step.
#include <halftone/core/caching_allocator.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include <sys/mman.h>

#include <halftone/core/error.h>
#include <halftone/core/memory.h>
#include <halftone/core/size_class.h>

namespace halftone {

namespace {
constexpr std::size_t smallest = 64, huge_page = std::size_t(1) << 21;

struct Cache {
  std::mutex mutex;
  std::array<std::vector<void*>, 4 * 64> free_blocks;
  CacheStatistics statistics;
  int64_t before_failure = -1;  // of fail_one_allocation()

  /// Returns all unused blocks to the system.
  void clear() {
    for (auto& blocks : free_blocks) {
      for (void* data : blocks) std::free(data);
      blocks.clear();
    }
    statistics.cached_bytes = 0;
  }
};

Cache& cache() {
  static Cache* instance =
      new Cache;  // never destroyed: tensors with static lifetime release into it
  return *instance;
}

void* system_allocate(std::size_t bytes) {
  const bool large = bytes >= huge_page;
  const std::size_t alignment = large ? huge_page : smallest;
  void* data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (data && large) madvise(data, bytes, MADV_HUGEPAGE);  // advice: failure changes nothing
  return data;
}
}  // namespace

void* cached_allocate(std::size_t bytes) {
  if (bytes > (std::size_t(1) << 46))
    fail<DeviceError>("allocate", "cannot allocate ", bytes,
                      " bytes on the CPU. Use a smaller shape.");
  const SizeClass wanted = size_class(bytes, smallest);
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  const bool fails = c.before_failure >= 0 && c.before_failure-- == 0;
  c.statistics.used_bytes += int64_t(wanted.bytes);
  if (auto& blocks = c.free_blocks[wanted.index]; !blocks.empty() && !fails) {
    void* data = blocks.back();
    blocks.pop_back();
    c.statistics.cached_bytes -= int64_t(wanted.bytes);
    return data;
  }
  void* data = fails ? nullptr : system_allocate(wanted.bytes);
  if (!data && !fails) {  // unused blocks of other sizes may make room
    c.clear();
    data = system_allocate(wanted.bytes);
  }
  if (!data) {
    c.statistics.used_bytes -= int64_t(wanted.bytes);
    fail<DeviceError>("allocate", "cannot allocate ", HumanBytes{int64_t(bytes)},
                      " on the CPU: the system has no more. Use a smaller batch or model.\n",
                      memory_report());
  }
  ++c.statistics.system_allocations;
  return data;
}

void cached_release(void* data, std::size_t bytes) noexcept {
  const SizeClass given = size_class(bytes, smallest);
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  c.statistics.used_bytes -= int64_t(given.bytes);
  try {
    c.free_blocks[given.index].push_back(data);
    c.statistics.cached_bytes += int64_t(given.bytes);
  } catch (const std::bad_alloc&) { std::free(data); }  // not even the list can grow
}

void detail::fail_one_allocation(int64_t after) {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  c.before_failure = after;
}

void release_cached_memory() {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  c.clear();
}

CacheStatistics cache_statistics() {
  Cache& c = cache();
  const std::lock_guard lock(c.mutex);
  return c.statistics;
}

}  // namespace halftone
