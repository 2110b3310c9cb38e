// PTX as nvcc writes it: a module is a file whose kernels are decoded when they first run.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "machine.h"

namespace halftone::ptx {

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
  bool mutated = false;  // mutant.h: registers are filled again for each block
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

}  // namespace halftone::ptx
