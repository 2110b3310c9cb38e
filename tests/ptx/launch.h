// Runs a kernel: all blocks of a grid, one after another.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "block.h"
#include "program.h"

namespace halftone::ptx {

using Size = std::array<unsigned, 3>;

struct Launch {
  Size grid{1, 1, 1}, block{1, 1, 1};
  Order order = Order::in_step;
  uint64_t block_order = 0;  // of the emulated GPU: set_block_order()
  FindAllocation find_allocation = nullptr;
  uint64_t most_steps = uint64_t(1) << 32;  // per block, after which it counts as endless
};

/// The kernel's parameters, one after another in its own order. Throws Fault.
void run(Kernel& kernel, const Launch& launch, const std::vector<std::byte>& parameters);

}  // namespace halftone::ptx
