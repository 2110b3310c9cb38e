// Runs the threads of a block as groups of threads that are at the same instruction. A group that
// is at the lowest instruction runs first, so that threads of different branches meet again.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "program.h"

namespace halftone::ptx {

/// The order in which threads run. `in_step`: all threads of a block are one group, as far as
/// branches let them. Otherwise each warp has its own groups: warp after warp, or another warp
/// after a few instructions. A kernel without races gives the same result in all orders.
enum class Order : uint8_t { in_step, ascending, descending, shuffled };

class Block {
 public:
  Block(Machine& machine, Kernel& kernel, Order order, uint64_t seed, uint64_t most_steps);
  /// Throws Fault.
  void run();

 private:
  using Threads = std::vector<uint16_t>;
  struct Group {
    int at;
    int warp;  // -1: all warps
    Threads threads;
  };
  struct Guarded {
    const uint16_t* list;
    int count;
  };

  void start();
  /// Completes barriers and exchanges; throws if threads wait for others that never come.
  void release();
  Group take_next();
  void go(Group group);
  /// Runs one instruction; returns false if the group ends here.
  bool step(Group& group, const Instruction& instruction);
  bool branch(Group& group, const Instruction& instruction, const Guarded& taken);
  bool leave(Group& group, const Guarded& taken);
  bool arrive(Group& group, const Guarded& taken);
  bool exchange(Group& group, const Instruction& instruction, const Guarded& taken);
  bool all_present(const Instruction& instruction, const Threads& threads) const;
  /// Splits off the lanes of warps in which every lane of the mask has arrived.
  Threads complete(const Instruction& instruction, Threads& threads) const;
  void ready(int at, int warp, Threads threads) { put(ready_, {at, warp, std::move(threads)}); }
  static void put(std::vector<Group>& groups, Group group);
  Guarded guarded(const Group& group, const Instruction& instruction);
  int next_of_others(int warp) const;
  uint64_t random();

  Machine& machine_;
  Kernel& kernel_;
  Order order_;
  uint64_t random_state_;
  std::vector<Group> ready_{}, at_barrier_{}, in_exchange_{};
  std::vector<bool> gone_{};
  int left_ = 0;  // threads that have not ended
  Threads taken_{}, others_{};
  uint64_t most_steps_, steps_ = 0;  // instructions, each counted once for the group that ran it
};

// Runs a kernel: all blocks of a grid, one after another.

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
