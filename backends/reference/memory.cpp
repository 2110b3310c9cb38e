// Memory of the host: the caching allocator, and plain copies. Kernels finish before they return,
// so synchronization does nothing.
#include <halftone/backends/reference/reference.h>

#include <cstring>

#include <halftone/core/memory.h>

namespace halftone {

void* ReferenceBackend::allocate(std::size_t bytes) { return cached_allocate(bytes); }
void ReferenceBackend::release(void* data, std::size_t bytes) noexcept {
  cached_release(data, bytes);
}
void ReferenceBackend::copy_to_host(const void* device, void* host, std::size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}
void ReferenceBackend::copy_from_host(const void* host, void* device, std::size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}

}  // namespace halftone
