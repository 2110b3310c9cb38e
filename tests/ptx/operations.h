// The types that PTX instructions end with, as C++ types.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "program.h"

namespace halftone::ptx {

struct U8 {
  using T = uint8_t;
  static constexpr const char* name = "u8";
};
struct S8 {
  using T = int8_t;
  static constexpr const char* name = "s8";
};
struct U16 {
  using T = uint16_t;
  static constexpr const char* name = "u16";
};
struct S16 {
  using T = int16_t;
  static constexpr const char* name = "s16";
};
struct B16 {
  using T = uint16_t;
  static constexpr const char* name = "b16";
};
struct U32 {
  using T = uint32_t;
  static constexpr const char* name = "u32";
};
struct S32 {
  using T = int32_t;
  static constexpr const char* name = "s32";
};
struct B32 {
  using T = uint32_t;
  static constexpr const char* name = "b32";
};
struct U64 {
  using T = uint64_t;
  static constexpr const char* name = "u64";
};
struct S64 {
  using T = int64_t;
  static constexpr const char* name = "s64";
};
struct B64 {
  using T = uint64_t;
  static constexpr const char* name = "b64";
};
struct F32 {
  using T = float;
  static constexpr const char* name = "f32";
};
struct F64 {
  using T = double;
  static constexpr const char* name = "f64";
};
/// One byte for each thread, 0 or 1.
struct Pred {
  using T = uint8_t;
  static constexpr const char* name = "pred";
};

template <class To, class From> To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &value, sizeof to);
  return to;
}

// The known instructions, by their whole spelling: an instruction or a modifier that is not in this
// table ends the test.

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

// Loops over rows, one for each number of operands.

template <class T, class Op> void unary(Machine& m, const Instruction& i, const Lanes& lanes) {
  T* const d = m.result<T>(i);
  const T* const a = m.value<T>(i, 1);
  lanes.each([=](int l) { d[l] = Op()(a[l]); });
}
template <class T, class Op> void binary(Machine& m, const Instruction& i, const Lanes& lanes) {
  T* const d = m.result<T>(i);
  const T *const a = m.value<T>(i, 1), *const b = m.value<T>(i, 2);
  lanes.each([=](int l) { d[l] = Op()(a[l], b[l]); });
}
template <class T, class Op> void ternary(Machine& m, const Instruction& i, const Lanes& lanes) {
  T* const d = m.result<T>(i);
  const T *const a = m.value<T>(i, 1), *const b = m.value<T>(i, 2), *const c = m.value<T>(i, 3);
  lanes.each([=](int l) { d[l] = Op()(a[l], b[l], c[l]); });
}

template <class Op, class... Types> void add_unary(Operations& all, const std::string& name) {
  (all.add(name + Types::name, unary<typename Types::T, Op>,
           {sizeof(typename Types::T), sizeof(typename Types::T)}),
   ...);
}
template <class Op, class... Types> void add_binary(Operations& all, const std::string& name) {
  (all.add(name + Types::name, binary<typename Types::T, Op>, {sizeof(typename Types::T)}), ...);
}
template <class Op, class... Types> void add_ternary(Operations& all, const std::string& name) {
  (all.add(name + Types::name, ternary<typename Types::T, Op>, {sizeof(typename Types::T)}), ...);
}

}  // namespace halftone::ptx
