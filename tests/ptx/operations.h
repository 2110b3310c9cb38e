// The known instructions, by their whole spelling: an instruction or a modifier that is not in this
// table ends the test.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "machine.h"
#include "types.h"

namespace halftone::ptx {

/// The form of an instruction's operands.
enum class Form : uint8_t {
  plain,       // results, then values
  carry,       // the same; a carry is the second result
  move,        // plain, or one side in braces
  low_byte,    // d, and a register of any width, one byte of which is used
  load,        // d, [address]
  store,       // [address], values
  atomic,      // d, [address], values
  shuffle,     // d|p, values
  matrix,      // wmma: lists in braces
  space_cast,  // cvta
  branch,
  call,
  leave,
  barrier,
};

struct Operation {
  std::string name;
  Form form = Form::plain;
  /// Bytes of the register of each operand; of the elements for memory. The last one applies to all
  /// further operands.
  std::vector<uint8_t> widths{};
  uint8_t results = 1;
  Run run = nullptr;
  Flow flow = Flow::next;
  Space space = Space::generic;
  uint8_t variant = 0;
  uint8_t elements = 1;                        // per vector in memory
  Run by_width[3]{};                           // for registers of 2, 4, 8 bytes
  Run packing = nullptr, unpacking = nullptr;  // moves with braces
};

class Operations {
 public:
  Operation& add(std::string name, Run run, std::initializer_list<uint8_t> widths);
  Operation& add(Operation operation);
  const Operation* find(std::string_view name) const;

 private:
  std::map<std::string, Operation, std::less<>> all_;
};

/// Returns all of them.
const Operations& operations();

void add_arithmetic(Operations& all);
void add_rounded(Operations& all);
void add_approximations(Operations& all);
void add_comparisons(Operations& all);
void add_integers(Operations& all);
void add_conversions(Operations& all);
void add_moves(Operations& all);
void add_memory(Operations& all);
void add_exchanges(Operations& all);
void add_matrices(Operations& all);
void add_control(Operations& all);

}  // namespace halftone::ptx
