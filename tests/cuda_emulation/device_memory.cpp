// Memory of the emulated GPU: pages whose access is granted and revoked.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <sys/mman.h>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/registry.h>
#include <halftone/core/files.h>

#include "device_memory.h"
#include "machine.h"

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

// Fills memory that no replay may read with NaNs. A captured graph is replayed with the addresses
// of its capture; the memory it uses must not be free for other work meanwhile. Before each replay
// all free memory outside of the pools of graphs is filled with a pattern, which is a NaN in every
// floating dtype. After the replay the pattern must be unchanged. A replay that reads such memory
// gives NaNs; a replay that writes there is found.

namespace {
constexpr auto pattern = std::byte{0xff};

bool& switched_on() {
  static bool on = number_from("HALFTONE_EMULATED_POISON") != 0;
  return on;
}
int64_t outside = 0;
}  // namespace

bool set_poison(bool on) { return std::exchange(switched_on(), on); }
bool poisoned() { return switched_on(); }
int64_t replays_outside() { return outside; }

void poison(void* data, std::size_t bytes) {
  const DeviceAccess access;
  std::memset(data, int(pattern), bytes);
}

std::vector<FreeBlock> free_blocks() {
  std::vector<FreeBlock> blocks;
  auto& backend = static_cast<CudaBackend&>(*cuda_backend(0));
  for (const auto& [data, bytes] : backend.context().memory().free_blocks())
    blocks.push_back({data, bytes});
  return blocks;
}

void replay_poisoned(const std::vector<FreeBlock>& blocks, const std::vector<Work>& replay) {
  for (const auto& [data, bytes] : blocks) poison(data, bytes);
  for (const Work& work : replay) work();
  for (const auto& [data, bytes] : blocks) {
    const auto* const first = static_cast<const std::byte*>(data);
    const auto* const wrong =
        std::find_if(first, first + bytes, [](std::byte b) { return b != pattern; });
    if (wrong == first + bytes) continue;
    std::fprintf(stderr, "[cuda emulation] a replay wrote to byte %td of %zu that is free\n",
                 wrong - first, bytes);
    ++outside;
    machine().found = cudaErrorIllegalAddress;
    return;
  }
}

}  // namespace halftone::emulation
