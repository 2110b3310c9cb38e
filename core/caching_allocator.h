// Host memory that is kept for reuse. A training step asks for the same sizes again and again.
// After the first step every request is served from the lists of freed blocks, without a system
// call and without page faults. Blocks are 64-byte aligned and come in size classes, four to each
// power of two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string_view>

#include <halftone/core/error.h>

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

/// Returns f(). If memory for its containers runs out, throws a DeviceError in the name of `op`;
/// `bytes`: of the data that it works on.
template <class F> decltype(auto) or_no_memory(std::string_view op, int64_t bytes, const F& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    fail<DeviceError>(op, "there is no memory left for work on ", bytes,
                      " bytes. Use less data, or free other memory first.");
  }
}

namespace detail {
/// For tests: after `after` other calls, one call of cached_allocate() fails as if the system had
/// no more memory; -1: none does.
void fail_one_allocation(int64_t after);
}  // namespace detail

}  // namespace halftone
