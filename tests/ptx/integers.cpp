// Bits and shifts of integers, and sums with a carry.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "arithmetic.h"

namespace halftone::ptx {

namespace {

struct And {
  template <class T> T operator()(T a, T b) const { return a & b; }
};
struct Or {
  template <class T> T operator()(T a, T b) const { return a | b; }
};
struct Xor {
  template <class T> T operator()(T a, T b) const { return a ^ b; }
};
struct Not {
  template <class T> T operator()(T a) const { return T(~a); }
};

/// A shift by more bits than a number has shifts all of them out.
template <class T> T left(T a, uint32_t by) {
  return by >= 8 * sizeof(T) ? T(0) : T(uint64_t(a) << by);
}
template <class T> T right(T a, uint32_t by) {
  const uint32_t most = 8 * sizeof(T) - 1;
  if (by > most && std::is_unsigned_v<T>) return 0;
  return T(a >> std::min(by, most));
}
template <class T, T (*shift)(T, uint32_t)>
void shifted(Machine& m, const Instruction& i, const Lanes& lanes) {
  T* const d = m.result<T>(i);
  const T* const a = m.value<T>(i, 1);
  const uint32_t* const by = m.value<uint32_t>(i, 2);
  lanes.each([=](int l) { d[l] = shift(a[l], by[l]); });
}
template <class... Types> void add_shl(Operations& all) {
  (all.add(std::string("shl.") + Types::name, shifted<typename Types::T, left>,
           {sizeof(typename Types::T), sizeof(typename Types::T), 4}),
   ...);
}
template <class... Types> void add_shr(Operations& all) {
  (all.add(std::string("shr.") + Types::name, shifted<typename Types::T, right>,
           {sizeof(typename Types::T), sizeof(typename Types::T), 4}),
   ...);
}

template <class T> void clz(Machine& m, const Instruction& i, const Lanes& lanes) {
  uint32_t* const d = m.result<uint32_t>(i);
  const T* const a = m.value<T>(i, 1);
  lanes.each([=](int l) { d[l] = uint32_t(std::countl_zero(a[l])); });
}
template <class T> void popc(Machine& m, const Instruction& i, const Lanes& lanes) {
  uint32_t* const d = m.result<uint32_t>(i);
  const T* const a = m.value<T>(i, 1);
  lanes.each([=](int l) { d[l] = uint32_t(std::popcount(a[l])); });
}

/// Writes b to d, and as many of the lowest bits of a as the length says at a position.
template <class T> void bfi(Machine& m, const Instruction& i, const Lanes& lanes) {
  T* const d = m.result<T>(i);
  const T *const a = m.value<T>(i, 1), *const b = m.value<T>(i, 2);
  const uint32_t *const place = m.value<uint32_t>(i, 3), *const length = m.value<uint32_t>(i, 4);
  lanes.each([=](int l) {
    const T mask = left<T>(T(left<T>(1, length[l] & 255) - 1), place[l] & 255);
    d[l] = T((b[l] & ~mask) | (left<T>(a[l], place[l] & 255) & mask));
  });
}

/// Selects four bytes of eight, each by four bits; the highest of them replicates the sign.
void prmt(Machine& m, const Instruction& i, const Lanes& lanes) {
  uint32_t* const d = m.result<uint32_t>(i);
  const uint32_t *const a = m.value<uint32_t>(i, 1), *const b = m.value<uint32_t>(i, 2),
                        *const choice = m.value<uint32_t>(i, 3);
  lanes.each([=](int l) {
    const uint64_t both = uint64_t(b[l]) << 32 | a[l];
    uint32_t result = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t chosen = choice[l] >> (4 * k) & 15;
      uint32_t byte = uint32_t(both >> (8 * (chosen & 7))) & 255;
      if (chosen & 8) byte = byte & 128 ? 255 : 0;
      result |= byte << (8 * k);
    }
    d[l] = result;
  });
}

/// Sums with a carry. Operands: d, the carry, a, b (c): the decoder adds the carry of the thread.
enum Carry : uint8_t { no_carry = 0, carry_in = 1, carry_out = 2, subtracts = 4, high = 8 };
void with_carry(Machine& m, const Instruction& i, const Lanes& lanes) {
  uint32_t* const d = m.result<uint32_t>(i);
  uint8_t* const carry = m.result<uint8_t>(i, 1);
  const bool multiplies = i.operand_count == 5;
  const uint32_t *const a = m.value<uint32_t>(i, 2), *const b = m.value<uint32_t>(i, 3),
                        *const c = multiplies ? m.value<uint32_t>(i, 4) : nullptr;
  const uint8_t how = i.variant;
  lanes.each([=](int l) {
    const uint64_t in = how & carry_in ? carry[l] : 0;
    const uint64_t product = multiplies ? uint64_t(a[l]) * b[l] : 0;
    const uint64_t first = multiplies ? (how & high ? product >> 32 : uint32_t(product)) : a[l],
                   second = multiplies ? c[l] : b[l];
    const uint64_t sum = how & subtracts ? first - second - in : first + second + in;
    d[l] = uint32_t(sum);
    if (how & carry_out) carry[l] = uint8_t(sum >> 32 & 1);
  });
}
void add_carry(Operations& all, const char* name, unsigned how) {
  Operation& operation = all.add(name, with_carry, {4, 1, 4});
  operation.form = Form::carry, operation.variant = uint8_t(how), operation.results = 2;
}

}  // namespace

void add_integers(Operations& all) {
  add_binary<And, B16, B32, B64>(all, "and."), add_binary<Or, B16, B32, B64>(all, "or.");
  add_binary<Xor, B16, B32, B64>(all, "xor."), add_unary<Not, B16, B32, B64>(all, "not.");
  add_shl<B16, B32, B64>(all), add_shr<B16, U16, S16, B32, U32, S32, B64, U64, S64>(all);
  all.add("clz.b32", clz<uint32_t>, {4, 4}), all.add("clz.b64", clz<uint64_t>, {4, 8});
  all.add("popc.b32", popc<uint32_t>, {4, 4}), all.add("popc.b64", popc<uint64_t>, {4, 8});
  all.add("bfi.b32", bfi<uint32_t>, {4, 4, 4, 4}), all.add("bfi.b64", bfi<uint64_t>, {8, 8, 8, 4});
  all.add("prmt.b32", prmt, {4});
  add_carry(all, "add.cc.u32", carry_out), add_carry(all, "addc.u32", carry_in);
  add_carry(all, "addc.cc.u32", carry_in | carry_out);
  add_carry(all, "sub.cc.u32", subtracts | carry_out);
  add_carry(all, "subc.u32", subtracts | carry_in);
  add_carry(all, "subc.cc.u32", subtracts | carry_in | carry_out);
  add_carry(all, "mad.lo.cc.u32", carry_out);
  add_carry(all, "madc.lo.cc.u32", carry_in | carry_out);
  add_carry(all, "madc.hi.u32", high | carry_in);
  add_carry(all, "madc.hi.cc.u32", high | carry_in | carry_out);
}

}  // namespace halftone::ptx
