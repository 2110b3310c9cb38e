// A decoded instruction, and the state of the block that runs it. A register is a row: one value
// for each thread of the block. Immediate values and %tid are also rows, filled before the block
// starts, so that every instruction is a loop over rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace halftone::ptx {

/// A forbidden action of a kernel, or an instruction that the interpreter does not know. The text
/// names the instruction.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Space : uint8_t { generic, shared, local, parameter };

struct Operand {
  uint32_t row = 0;          // where the row starts, in bytes for each thread
  uint8_t width = 0;         // bytes of a value
  bool inverted = false;     // a predicate after !
  int64_t displacement = 0;  // added to an address
};

/// Threads of a block that execute an instruction, in ascending order.
struct Lanes {
  const uint16_t* list;
  int count;
  bool dense;  // they are adjacent

  Lanes(const uint16_t* first, int n)
      : list(first), count(n), dense(n > 0 && first[n - 1] - first[0] + 1 == n) {}
  template <class F> void each(F f) const {
    if (dense) {
      const int begin = list[0], end = begin + count;
#pragma GCC ivdep
      for (int lane = begin; lane < end; ++lane) f(lane);
    } else {
      for (int k = 0; k < count; ++k) f(int(list[k]));
    }
  }
};

struct Machine;
struct Instruction;
struct Kernel;
using Run = void (*)(Machine&, const Instruction&, const Lanes&);

/// The effect of an instruction on the order of execution. `exchange`: the lanes of a warp meet
/// here.
enum class Flow : uint8_t { next, branch, leave, barrier, exchange };

struct Operation;
struct Instruction {
  Run run = nullptr;
  const Operation* operation = nullptr;
  const Operand* operands = nullptr;
  uint16_t operand_count = 0, results = 0;  // results come first
  Flow flow = Flow::next;
  Space space = Space::generic;
  bool guarded = false, guard_inverted = false;
  bool whole_warp = false;  // wmma: it has no mask
  uint8_t variant = 0;      // selects one of the operations of a function
  uint32_t guard = 0;       // row
  int target = -1;
  uint32_t text = 0;  // position in the module's text
};

struct Range {
  uint64_t first = 0, bytes = 0;
  bool holds(uint64_t address, uint64_t size) const {
    return address >= first && size <= bytes && address - first <= bytes - size;
  }
};
/// The allocation of global memory that contains an address; empty if none does.
using FindAllocation = Range (*)(uint64_t address);

/// A block, while it runs.
struct Machine {
  const Kernel* kernel = nullptr;
  const Instruction* current = nullptr;
  int threads = 0;
  std::size_t padded = 0;  // values of a row
  std::byte* registers = nullptr;
  /// By Space: the location of address 0, and the allowed addresses; for global memory, those of
  /// the allocation that was used last.
  std::byte* bases[4]{};
  Range ranges[4]{};
  FindAllocation find_allocation = nullptr;

  void set(Space space, std::byte* base, std::size_t bytes) {
    bases[int(space)] = base, ranges[int(space)] = {0, bytes};
  }
  template <class T> T* row(const Operand& operand) const {
    return reinterpret_cast<T*>(registers + operand.row * padded);
  }
  template <class T> T* result(const Instruction& i, int n = 0) const {
    return row<T>(i.operands[n]);
  }
  template <class T> const T* value(const Instruction& i, int n) const {
    return row<T>(i.operands[n]);
  }
  /// Returns the memory at an address, after a check of its bounds and its alignment.
  std::byte* memory(Space space, uint64_t address, uint32_t bytes, int thread) {
    const Range& range = ranges[int(space)];
    if (!range.holds(address, bytes) || address % bytes != 0)
      return checked_memory(space, address, bytes, thread);
    return bases[int(space)] + address +
           (space == Space::local ? std::size_t(thread) * range.bytes : 0);
  }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::byte* checked_memory(Space space, uint64_t address, uint32_t bytes, int thread);
};

}  // namespace halftone::ptx
