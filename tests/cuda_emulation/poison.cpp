// Fills memory that no replay may read with NaNs. A captured graph is replayed with the addresses
// of its capture; the memory it uses must not be free for other work meanwhile. Before each replay
// all free memory outside of the pools of graphs is filled with a pattern, which is a NaN in every
// floating dtype. After the replay the pattern must be unchanged. A replay that reads such memory
// gives NaNs; a replay that writes there is found.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include <halftone/backends/cuda/cuda.h>
#include <halftone/backends/cuda/cuda_backend.h>

#include "machine.h"

namespace halftone::emulation {

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
