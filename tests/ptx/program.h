// A decoded instruction, and the state of the block that runs it. A register is a row: one value
// for each thread of the block. Immediate values and %tid are also rows, filled before the block
// starts, so that every instruction is a loop over rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
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

// PTX as nvcc writes it: a module is a file whose kernels are decoded when they first run.

struct Parameter {
  std::string name;
  uint32_t offset, bytes;
};

/// A row that is filled before a block runs: an immediate value, or a number of the thread or
/// block.
struct FilledRow {
  enum class What : uint8_t { bits, thread, block, block_size, grid_size } what = What::bits;
  uint8_t width = 8, dimension = 0;
  uint32_t row = 0;
  uint64_t bits = 0;
};

struct Module;
struct Kernel {
  std::string name;
  Module* module = nullptr;
  std::size_t header = 0, body = 0;  // in the module's text: after the name, and its {
  unsigned most_threads = 1024;      // .maxntid

  std::vector<Parameter> parameters{};
  uint32_t parameter_bytes = 0;

  bool decoded = false;
  bool mutated = false;  // registers are filled again for each block
  std::vector<Instruction> code{};
  std::vector<uint64_t> executed{};  // by instruction: how often it ran
  std::deque<std::vector<Operand>> operands{};
  std::vector<FilledRow> filled{};
  uint32_t register_bytes = 0, shared_bytes = 0, local_bytes = 0;
  uint64_t launches = 0;

  std::string_view text_of(const Instruction& instruction) const;
};

/// A variable of a module.
struct Variable {
  bool shared = false;
  uint32_t bytes = 0, alignment = 1;
  std::byte* data = nullptr;  // for a global variable
};
struct Function {
  std::size_t header, body;
};

struct Module {
  std::string text;
  std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels{};
  std::map<std::string, Function, std::less<>> functions{};
  std::map<std::string, Variable, std::less<>> variables{};
  std::vector<std::unique_ptr<std::byte[]>> data{};

  explicit Module(std::string ptx);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  /// Throws Fault if no kernel has this name.
  Kernel& kernel(std::string_view name);
  /// Returns the variable in global memory at this address.
  Range variable_at(uint64_t address) const;
};

/// Reads a kernel's instructions, once. Throws Fault at the first unknown one.
void decode(Kernel& kernel);

// --- pieces of text
std::string_view trimmed(std::string_view text);
/// Returns the parts between commas that are outside of brackets.
std::vector<std::string_view> split(std::string_view text);
bool is_word(char c);
/// Returns the bytes of a type as PTX spells it (f32, pred); 0 if PTX has no such type.
uint8_t bytes_of(std::string_view type);
/// Returns the position of the } for the { at `open`.
std::size_t end_of_braces(std::string_view text, std::size_t open);
/// The name of the kernel or function whose header starts at `at`, without the list of its results.
std::string_view name_after(std::string_view text, std::size_t at);
/// Returns the bits of 12, -7, 0x1F, 0f3F800000, 0d3FF0000000000000.
uint64_t number(std::string_view text);

/// `.align 8 .b8 name[16]`, `.u64 name`, or the same after .param, .shared, ...
struct Declaration {
  std::string_view name;
  uint32_t bytes, alignment, element;
};
Declaration declaration(std::string_view text);

// The names of a kernel: registers, variables, parameters, labels of scopes; and their rows.

struct Symbol {
  enum class Kind : uint8_t { reg, shared, local, parameter, global } kind = Kind::reg;
  uint8_t width = 0;     // of a register
  uint64_t address = 0;  // the row of a register
  uint32_t bytes = 0;
};

class Symbols {
 public:
  explicit Symbols(Kernel& kernel);

  void open_scope() { scopes_.emplace_back(); }
  void close_scope() { scopes_.pop_back(); }
  /// .reg, .shared, .local or .param in a body.
  void declare(std::string_view directive);
  /// A parameter of an inlined function is the caller's argument.
  void declare(std::string_view name, const Symbol& symbol) { scopes_.back().names[name] = symbol; }
  /// Returns null if the name is not defined.
  const Symbol* find(std::string_view name);

  uint32_t new_row(uint8_t width);
  /// Returns a row that has this value for all threads.
  Operand constant(uint8_t width, uint64_t bits);
  /// %tid.x, %ctaid.x, %ntid.x, %nctaid.x and those of y and z. Returns false for other names.
  bool special(std::string_view name, Operand& operand);
  /// Returns the row of the carry flag.
  Operand carry();

 private:
  struct Series {  // .reg .b32 %r<100>
    uint8_t width;
    std::vector<Symbol> members;
  };
  struct Scope {
    std::map<std::string_view, Symbol> names{};
    std::map<std::string_view, Series> series{};
  };
  const Symbol* member(Scope& scope, std::string_view name);
  void declare_registers(std::string_view text);
  Operand filled(FilledRow row);

  Kernel& kernel_;
  std::vector<Scope> scopes_;
  std::map<std::pair<uint8_t, uint64_t>, uint32_t> constants_{};
  std::map<std::pair<FilledRow::What, uint8_t>, uint32_t> specials_{};
  int64_t carry_ = -1;
};

// Reads the PTX that nvcc links into a program.

/// Returns the PTX of the fat binary that a wrapper (__fatBinC_Wrapper_t) points to. Throws Fault
/// if it has none, or if it is compressed and libzstd cannot be opened.
std::string text_of_fat_binary(const void* wrapper);

// The modules of a program, and a record of the instructions that ran.

/// Registers a fat binary of the program.
void register_binary(const void* wrapper);
/// Returns the module of a fat binary, and reads it at the first call.
Module& module_of(const void* wrapper);
/// Returns the modules of all fat binaries of the program.
std::vector<Module*> all_modules();

// ptxas may fuse a product and a sum without .rn to one multiply-add. With HALFTONE_PTX_FUSE=1 the
// interpreter fuses wherever ptxas may: results must be right either way.

bool fuses();
void fuse(Kernel& kernel);
/// Returns the number of fused multiply-adds.
int64_t fused_sums();

// Tests of tests: HALFTONE_PTX_MUTANT="KERNEL PLACE KIND" changes one instruction of one kernel.

/// KIND: `drop` (it does nothing, a jump is not taken), `swap` (its last two values are exchanged),
/// `invert` (its guard, or the guard of a selection). Does nothing if the kernel is another one.
void mutate(Kernel& kernel);
/// The same, with the change as an argument.
void mutate(Kernel& kernel, std::size_t place, std::string_view kind);

}  // namespace halftone::ptx
