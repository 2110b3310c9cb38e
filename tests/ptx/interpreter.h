// Runs the threads of a block as groups of threads that are at the same instruction. A group that
// is at the lowest instruction runs first, so that threads of different branches meet again.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

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

// A small kernel that a test writes: its memory before and after a run.

namespace halftone::test {

/// A module with one kernel, whose parameter is the address of words.
inline std::string with_kernel(const std::string& body, const std::string& directives = "",
                               const std::string& before = "") {
  return ".version 9.0\n.target sm_80\n.address_size 64\n" + before +
         ".visible .entry k(\n.param .u64 k_param_0\n)\n" + directives +
         "{\n.reg .pred %p<8>;\n.reg .b16 %rs<8>;\n.reg .b32 %r<20>;\n.reg .f32 %f<40>;\n.reg .b64 "
         "%rd<9>;\n.reg .f64 %fd<8>;\n" +
         "ld.param.u64 %rd1, [k_param_0];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\n"
         "add.s64 %rd3, %rd1, %rd2;\n" +
         body + "ret;\n}\n";
}

inline ptx::Range& words_of_the_test() {
  static ptx::Range range;
  return range;
}

struct Run {
  unsigned threads = 32, blocks = 1;
  ptx::Order order = ptx::Order::in_step;
  bool fused = false;
};

/// %rd1 is the address of the words, %r1 the number of the thread, %rd3 the address of its word.
inline std::vector<uint32_t> words_after(const std::string& module, std::vector<uint32_t> words,
                                         const Run& run = {}) {
  alignas(64) static uint32_t memory[1024];
  std::copy(words.begin(), words.end(), memory);
  ptx::Module m(module);
  ptx::Kernel& kernel = m.kernel("k");
  ptx::decode(kernel);
  if (run.fused) ptx::fuse(kernel);
  words_of_the_test() = {reinterpret_cast<uint64_t>(memory), words.size() * 4};
  std::vector<std::byte> parameters(8);
  std::memcpy(parameters.data(), &words_of_the_test().first, 8);
  ptx::Launch launch{{run.blocks, 1, 1}, {run.threads, 1, 1}, run.order};
  launch.most_steps = 100'000;
  launch.find_allocation = [](uint64_t) { return words_of_the_test(); };
  ptx::run(kernel, launch, parameters);
  std::copy_n(memory, words.size(), words.begin());
  return words;
}

/// Returns the result that one thread computes with a body that leaves it in %r2.
inline uint32_t result_of(const std::string& body) {
  return words_after(with_kernel(body + "st.global.u32 [%rd3], %r2;\n"), {0}, {.threads = 1})[0];
}

}  // namespace halftone::test
