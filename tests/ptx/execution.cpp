// Loads, stores and atomics, with the bounds of each kind of memory.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "arithmetic.h"
#include "program.h"

namespace halftone::ptx {

namespace {

std::string hexadecimal(uint64_t number) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(number));
  return text;
}

}  // namespace

/// Throws a fault, or finds another allocation of global memory for an address than the last one.
std::byte* Machine::checked_memory(Space space, uint64_t address, uint32_t bytes, int thread) {
  const std::string access = std::to_string(bytes) + " bytes at " + hexadecimal(address) +
                             ", thread " + std::to_string(thread);
  if (address % bytes != 0) fail("not aligned: " + access);
  static constexpr const char* names[] = {"global", "shared", "local", "parameter"};
  if (space != Space::generic)
    fail("outside of the " + std::to_string(ranges[int(space)].bytes) + " bytes of " +
         names[int(space)] + " memory: " + access);
  const Range shared{reinterpret_cast<uint64_t>(bases[int(Space::shared)]),
                     ranges[int(Space::shared)].bytes};
  // Every thread has the same generic addresses for its own local memory.
  const Range local{reinterpret_cast<uint64_t>(bases[int(Space::local)]),
                    ranges[int(Space::local)].bytes};
  if (local.holds(address, bytes))
    return bases[int(Space::local)] + (address - local.first) + std::size_t(thread) * local.bytes;
  Range found = shared.holds(address, bytes) ? shared : kernel->module->variable_at(address);
  if (!found.holds(address, bytes) && find_allocation) found = find_allocation(address);
  if (!found.holds(address, bytes)) fail("in no allocation: " + access);
  ranges[int(space)] = found;
  return reinterpret_cast<std::byte*>(address);
}

namespace {

/// Calls access(lane, memory) for each lane. The first memory operand of `i` is an address.
template <class F>
void each_address(Machine& m, const Operand& operand, Space space, uint32_t bytes,
                  const Lanes& lanes, F access) {
  const uint64_t displacement = uint64_t(operand.displacement);
  if (operand.width == 8) {
    const uint64_t* const row = m.row<uint64_t>(operand);
    lanes.each([&](int l) { access(l, m.memory(space, row[l] + displacement, bytes, l)); });
  } else {
    const uint32_t* const row = m.row<uint32_t>(operand);
    lanes.each(
        [&](int l) { access(l, m.memory(space, uint32_t(row[l] + displacement), bytes, l)); });
  }
}

/// Returns the first address if the numbers of the lanes are adjacent in memory.
template <class T>
const uint64_t* consecutive(Machine& m, const Operand& operand, const Lanes& lanes) {
  if (!lanes.dense || operand.width != 8) return nullptr;
  const uint64_t* const row = m.row<uint64_t>(operand) + lanes.list[0];
  uint64_t wrong = 0;
  for (int k = 0; k < lanes.count; ++k) wrong |= row[k] - row[0] - sizeof(T) * unsigned(k);
  return wrong == 0 ? row : nullptr;
}

template <class Memory, class Register>
void load(Machine& m, const Instruction& i, const Lanes& lanes) {
  const Operand& address = i.operands[i.results];
  const int elements = i.results;
  if (elements == 1 && i.space == Space::generic) {
    if (const uint64_t* const first = consecutive<Memory>(m, address, lanes)) {
      const auto bytes = uint32_t(sizeof(Memory)) * uint32_t(lanes.count);
      const uint64_t start = *first + uint64_t(address.displacement);
      if (start % sizeof(Memory) == 0 && m.ranges[0].holds(start, bytes)) {
        const auto* const from = reinterpret_cast<const Memory*>(start);
        Register* const d = m.result<Register>(i) + lanes.list[0];
        for (int k = 0; k < lanes.count; ++k) d[k] = Register(from[k]);
        return;
      }
    }
  }
  Register* d[4]{};
  for (int e = 0; e < elements; ++e) d[e] = m.result<Register>(i, e);
  each_address(m, address, i.space, uint32_t(sizeof(Memory)) * uint32_t(elements), lanes,
               [&](int l, const std::byte* at) {
                 const auto* const from = reinterpret_cast<const Memory*>(at);
                 for (int e = 0; e < elements; ++e) d[e][l] = Register(from[e]);
               });
}

template <class Memory, class Register>
void store(Machine& m, const Instruction& i, const Lanes& lanes) {
  const int elements = i.operand_count - 1;
  const Register* from[4]{};
  for (int e = 0; e < elements; ++e) from[e] = m.value<Register>(i, 1 + e);
  each_address(m, i.operands[0], i.space, uint32_t(sizeof(Memory)) * uint32_t(elements), lanes,
               [&](int l, std::byte* at) {
                 auto* const to = reinterpret_cast<Memory*>(at);
                 for (int e = 0; e < elements; ++e) to[e] = Memory(from[e][l]);
               });
}

/// A value that is narrower than its register is extended by its sign or by zeros.
template <class Type>
void add_access(Operations& all, const std::string& start, Form form, Space space,
                uint8_t elements) {
  using T = typename Type::T;
  Operation operation;
  operation.name = start + Type::name;
  operation.form = form, operation.space = space, operation.elements = elements;
  operation.results = form == Form::load ? elements : 0;
  operation.widths = {sizeof(T)};
  const bool loads = form == Form::load;
  if constexpr (sizeof(T) <= 2)
    operation.by_width[0] = loads ? load<T, uint16_t> : store<T, uint16_t>;
  if constexpr (sizeof(T) <= 4 && std::is_integral_v<T>)
    operation.by_width[1] = loads ? load<T, uint32_t> : store<T, uint32_t>;
  if constexpr (std::is_same_v<T, float>)
    operation.by_width[1] = loads ? load<T, float> : store<T, float>;
  if constexpr (std::is_integral_v<T>)
    operation.by_width[2] = loads ? load<T, uint64_t> : store<T, uint64_t>;
  if constexpr (std::is_same_v<T, double>)
    operation.by_width[2] = loads ? load<T, double> : store<T, double>;
  all.add(std::move(operation));
}
template <class... Types>
void add_accesses(Operations& all, const std::string& name, Form form, Space space) {
  (add_access<Types>(all, name + ".", form, space, 1), ...);
  (add_access<Types>(all, name + ".v2.", form, space, 2), ...);
  (add_access<Types>(all, name + ".v4.", form, space, 4), ...);
}

/// Converts an address of a space to a generic one, or with `back` a generic one to an address of
/// the space.
template <bool back> void space_cast(Machine& m, const Instruction& i, const Lanes& lanes) {
  uint64_t* const d = m.result<uint64_t>(i);
  const uint64_t* const a = m.value<uint64_t>(i, 1);
  const uint64_t base =
      i.space == Space::generic ? 0 : reinterpret_cast<uint64_t>(m.bases[int(i.space)]);
  lanes.each([=](int l) { d[l] = back ? a[l] - base : a[l] + base; });
}

struct Exchange {
  template <class T> T operator()(T, T b, T) const { return b; }
};
struct AtomicAdd {
  template <class T> T operator()(T old, T b, T) const { return T(old + b); }
};
struct AtomicMax {
  template <class T> T operator()(T old, T b, T) const { return std::max(old, b); }
};
struct AtomicMin {
  template <class T> T operator()(T old, T b, T) const { return std::min(old, b); }
};
struct CompareAndSwap {
  template <class T> T operator()(T old, T b, T c) const { return old == b ? c : old; }
};

/// Threads run one after another, in the order of the lanes.
template <class T, class Op> void atomic(Machine& m, const Instruction& i, const Lanes& lanes) {
  T* const d = m.result<T>(i);
  const T *const b = m.value<T>(i, 2), *const c = i.operand_count > 3 ? m.value<T>(i, 3) : b;
  each_address(m, i.operands[1], i.space, sizeof(T), lanes, [=](int l, std::byte* at) {
    T* const place = reinterpret_cast<T*>(at);
    const T old = *place;
    *place = Op()(old, b[l], c[l]);
    d[l] = old;
  });
}
template <class Type, class Op> void add_atomic(Operations& all, const std::string& name) {
  using T = typename Type::T;
  for (const auto& [text, space] :
       {std::pair("global", Space::generic), {"shared", Space::shared}}) {
    Operation& operation = all.add("atom." + std::string(text) + "." + name + "." + Type::name,
                                   atomic<T, Op>, {sizeof(T)});
    operation.form = Form::atomic, operation.space = space;
  }
}

}  // namespace

void add_memory(Operations& all) {
  for (const auto& [name, space] : {std::pair("ld", Space::generic),
                                    {"ld.global", Space::generic},
                                    {"ld.global.nc", Space::generic},
                                    {"ld.param", Space::parameter},
                                    {"ld.shared", Space::shared},
                                    {"ld.local", Space::local}})
    add_accesses<U8, S8, U16, S16, B16, U32, S32, B32, U64, S64, B64, F32, F64>(all, name,
                                                                                Form::load, space);
  // A parameter of a call is in the thread's memory.
  for (const auto& [name, space] : {std::pair("st", Space::generic),
                                    {"st.global", Space::generic},
                                    {"st.param", Space::local},
                                    {"st.shared", Space::shared},
                                    {"st.local", Space::local}})
    add_accesses<U8, U16, B16, U32, B32, U64, B64, F32, F64>(all, name, Form::store, space);
  for (const auto& [name, space] : {std::pair("global.u64", Space::generic),
                                    {"shared.u64", Space::shared},
                                    {"local.u64", Space::local}}) {
    for (const bool back : {false, true}) {
      Operation& operation = all.add(std::string(back ? "cvta.to." : "cvta.") + name,
                                     back ? space_cast<true> : space_cast<false>, {8});
      operation.form = Form::space_cast, operation.space = space;
    }
  }
  add_atomic<U32, AtomicAdd>(all, "add"), add_atomic<S32, AtomicAdd>(all, "add");
  add_atomic<U32, AtomicMax>(all, "max"), add_atomic<S32, AtomicMax>(all, "max");
  add_atomic<U32, AtomicMin>(all, "min"), add_atomic<S32, AtomicMin>(all, "min");
  add_atomic<B32, CompareAndSwap>(all, "cas"), add_atomic<B32, Exchange>(all, "exch");
}

}  // namespace halftone::ptx
