// Memory of the emulated GPU: pages whose access is granted and revoked.
#include "device_memory.h"

#include <cstdlib>

#include <sys/mman.h>

#include <halftone/core/files.h>

namespace halftone::emulation {

namespace {
constexpr std::size_t page = 4096, address_space = std::size_t(1) << 36;
constexpr int reserved = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
}  // namespace

DeviceMemory::DeviceMemory() : closed_(environment_variable("HALFTONE_EMULATED_CLOSED")) {
  void* const memory = mmap(nullptr, address_space, PROT_NONE, reserved, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  base_ = static_cast<std::byte*>(memory);
}

void* DeviceMemory::allocate(std::size_t bytes) {
  const std::size_t pages = (bytes + page - 1) / page * page;
  if (allocated_ + pages > total || used_ + pages + page > address_space) return nullptr;
  std::byte* const first = base_ + used_;
  std::byte* const data = first + (pages - (bytes + 255) / 256 * 256);
  used_ += pages + page, allocated_ += pages;
  blocks_[data] = {first, pages, bytes};
  if (!closed_ || depth_ > 0) mprotect(first, pages, PROT_READ | PROT_WRITE);
  return data;
}

bool DeviceMemory::release(void* data) {
  const auto found = blocks_.find(static_cast<std::byte*>(data));
  if (found == blocks_.end()) return false;
  allocated_ -= found->second.bytes;
  mmap(found->second.first, found->second.bytes, PROT_NONE, reserved | MAP_FIXED, -1, 0);
  blocks_.erase(found);
  return true;
}

DeviceMemory::Allocation DeviceMemory::allocation_at(const void* address) const {
  auto after = blocks_.upper_bound(static_cast<std::byte*>(const_cast<void*>(address)));
  if (after == blocks_.begin()) return {};
  --after;
  return {after->first, after->second.asked};
}

void DeviceMemory::open() {
  if (depth_++ == 0) protect(PROT_READ | PROT_WRITE);
}
void DeviceMemory::close() {
  if (--depth_ == 0) protect(PROT_NONE);
}
void DeviceMemory::protect(int access) const {
  if (closed_ && used_ > 0) mprotect(base_, used_, access);
}

}  // namespace halftone::emulation
