// Host memory that is kept for reuse. A training step asks for the same sizes again and again.
// After the first step every request is served from the lists of freed blocks, without a system
// call and without page faults. Blocks are 64-byte aligned and come in size classes, four to each
// power of two.
#pragma once

#include <cstddef>
#include <cstdint>

namespace halftone {

struct CacheStatistics {
  int64_t system_allocations = 0;  // blocks taken from the operating system until now
  int64_t cached_bytes = 0;        // held in the lists, ready for reuse
  int64_t used_bytes = 0;          // handed out, rounded to size classes
};

/// Returns at least `bytes` bytes, aligned to 64; throws DeviceError if the system has no more.
/// Thread-safe.
void* cached_allocate(std::size_t bytes);
/// Gives a block of `bytes` bytes back to its list.
void cached_release(void* data, std::size_t bytes) noexcept;
/// Returns all cached blocks to the system.
void release_cached_memory();
CacheStatistics cache_statistics();

}  // namespace halftone
