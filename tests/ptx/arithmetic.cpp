// Sums, products, quotients, minima: of floats to nearest, of integers modulo 2^bits.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include <immintrin.h>

#include <halftone/core/files.h>

#include "operations.h"

namespace halftone::ptx {

namespace {

struct Add {
  template <class T> T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return T(uint64_t(a) + uint64_t(b));
    else return a + b;
  }
};
struct Sub {
  template <class T> T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return T(uint64_t(a) - uint64_t(b));
    else return a - b;
  }
};
struct Mul {
  template <class T> T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) return T(uint64_t(a) * uint64_t(b));
    else return a * b;
  }
};
struct Fma {
  template <class T> T operator()(T a, T b, T c) const {
    if constexpr (std::is_integral_v<T>) return T(uint64_t(a) * uint64_t(b) + uint64_t(c));
    else return std::fma(a, b, c);
  }
};
/// Division of integers by zero gives all ones on NVIDIA's hardware; PTX does not define it.
struct Div {
  template <class T> T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      if (b == 0) return T(-1);
      if (std::is_signed_v<T> && b == T(-1)) return T(0 - uint64_t(a));
    }
    return T(a / b);
  }
};
struct Rem {
  template <class T> T operator()(T a, T b) const {
    if (b == 0) return a;
    if (std::is_signed_v<T> && b == T(-1)) return 0;
    return T(a % b);
  }
};
/// If one operand is a NaN, the result is the other one. -0 is less than +0.
struct Min {
  template <class T> T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) && std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
      if (std::isnan(a)) return b;
      if (std::isnan(b)) return a;
      if (a == b) return std::signbit(a) ? a : b;
    }
    return a < b ? a : b;
  }
};
struct Max {
  template <class T> T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) && std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
      if (std::isnan(a)) return b;
      if (std::isnan(b)) return a;
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a > b ? a : b;
  }
};
struct Neg {
  template <class T> T operator()(T a) const {
    if constexpr (std::is_integral_v<T>) return T(0 - uint64_t(a));
    else return -a;
  }
};
struct Abs {
  template <class T> T operator()(T a) const {
    if constexpr (std::is_integral_v<T>) return a < 0 ? T(0 - uint64_t(a)) : a;
    else return std::fabs(a);
  }
};
/// The magnitude is that of the second operand.
struct CopySign {
  template <class T> T operator()(T a, T b) const { return std::copysign(b, a); }
};
struct Sqrt {
  template <class T> T operator()(T a) const { return std::sqrt(a); }
};
struct Reciprocal {
  template <class T> T operator()(T a) const { return T(1) / a; }
};
struct HighHalf {
  uint32_t operator()(uint32_t a, uint32_t b) const { return uint32_t(uint64_t(a) * b >> 32); }
  int32_t operator()(int32_t a, int32_t b) const { return int32_t(int64_t(a) * b >> 32); }
  uint64_t operator()(uint64_t a, uint64_t b) const {
    return uint64_t((unsigned __int128)(a)*b >> 64);
  }
};

/// The product of two numbers has twice their bits.
template <class T, class Wide> void mul_wide(Machine& m, const Instruction& i, const Lanes& lanes) {
  Wide* const d = m.result<Wide>(i);
  const T *const a = m.value<T>(i, 1), *const b = m.value<T>(i, 2);
  lanes.each([=](int l) { d[l] = Wide(a[l]) * Wide(b[l]); });
}
template <class T, class Wide> void mad_wide(Machine& m, const Instruction& i, const Lanes& lanes) {
  Wide* const d = m.result<Wide>(i);
  const T *const a = m.value<T>(i, 1), *const b = m.value<T>(i, 2);
  const Wide* const c = m.value<Wide>(i, 3);
  lanes.each([=](int l) { d[l] = Wide(uint64_t(Wide(a[l]) * Wide(b[l])) + uint64_t(c[l])); });
}

}  // namespace

void add_arithmetic(Operations& all) {
  add_binary<Add, S16, U16, S32, U32, S64, U64, F32, F64>(all, "add.");
  add_binary<Sub, S16, U16, S32, U32, S64, U64, F32, F64>(all, "sub.");
  add_binary<Mul, F32, F64>(all, "mul.");
  add_binary<Add, F32, F64>(all, "add.rn.");
  add_binary<Sub, F32, F64>(all, "sub.rn.");
  add_binary<Mul, F32, F64>(all, "mul.rn.");
  add_binary<Mul, S16, U16, S32, U32, S64, U64>(all, "mul.lo.");
  add_binary<HighHalf, S32, U32, U64>(all, "mul.hi.");
  add_ternary<Fma, S32, U32, S64, U64>(all, "mad.lo.");
  add_ternary<Fma, F32, F64>(all, "fma.rn.");
  add_binary<Div, S32, U32, S64, U64>(all, "div.");
  add_binary<Div, F32, F64>(all, "div.rn.");
  add_binary<Rem, S32, U32, S64, U64>(all, "rem.");
  add_binary<Min, S32, U32, S64, U64, F32, F64>(all, "min.");
  add_binary<Max, S32, U32, S64, U64, F32, F64>(all, "max.");
  add_binary<CopySign, F32, F64>(all, "copysign.");
  add_unary<Neg, S32, S64, F32, F64>(all, "neg.");
  add_unary<Abs, S32, S64, F32, F64>(all, "abs.");
  add_unary<Sqrt, F32, F64>(all, "sqrt.rn.");
  add_unary<Reciprocal, F32, F64>(all, "rcp.rn.");
  all.add("mul.wide.s32", mul_wide<int32_t, int64_t>, {8, 4});
  all.add("mul.wide.u32", mul_wide<uint32_t, uint64_t>, {8, 4});
  all.add("mad.wide.s32", mad_wide<int32_t, int64_t>, {8, 4, 4, 8});
  all.add("mad.wide.u32", mad_wide<uint32_t, uint64_t>, {8, 4, 4, 8});
}

// Instructions whose results PTX bounds but does not define (.approx). They give the nearest
// number, or, with HALFTONE_PTX_NUDGE=1, one with the largest error that "PTX ISA" allows, always
// the same for the same number, as on a GPU. ex2 at whole numbers is exact: NVIDIA's own expf
// relies on it.

namespace {

bool nudges() {
  static const bool on = environment_variable("HALFTONE_PTX_NUDGE") != nullptr;
  return on;
}

/// Returns a number within `most` units in the last place of x.
float nudged(float x, int most) {
  if (!nudges() || !std::isnormal(x)) return x;
  const uint32_t bits = bits_as<uint32_t>(x);
  const uint32_t mixed = (bits ^ bits >> 15) * 2246822519u;
  const int off = int((mixed >> 13) % unsigned(2 * most + 1)) - most;
  const float moved = bits_as<float>(uint32_t(int64_t(bits) + off));
  return std::isnormal(moved) ? moved : x;
}

template <class T> T flushed(T x) {
  return std::fabs(x) < std::numeric_limits<T>::min() ? std::copysign(T(0), x) : x;
}

float power_of_two(float x) {
  const float y = float(std::exp2(double(x)));
  return x == std::floor(x) ? y : nudged(y, 2);
}
struct Ex2 {
  float operator()(float x) const { return power_of_two(x); }
};
struct Ex2Ftz {
  float operator()(float x) const { return flushed(power_of_two(flushed(x))); }
};
struct RcpFtz {
  float operator()(float x) const { return flushed(nudged(1.0f / flushed(x), 1)); }
};
/// Uses only the upper halves of the bits: about 20 bits are right.
struct RcpFtzOfDouble {
  double operator()(double x) const {
    constexpr uint64_t upper = 0xffffffff00000000;
    const double short_x = flushed(bits_as<double>(bits_as<uint64_t>(x) & upper));
    return bits_as<double>(bits_as<uint64_t>(flushed(1.0 / short_x)) & upper);
  }
};
/// Divisors above 2^126 give 0.
struct DivApprox {
  float operator()(float a, float b) const {
    const float quotient = a / b;
    if (std::fabs(b) > 0x1p126f && std::isfinite(b) && std::isfinite(a))
      return std::copysign(0.0f, quotient);
    return nudged(quotient, 2);
  }
};
struct DivApproxFtz {
  float operator()(float a, float b) const { return flushed(DivApprox{}(flushed(a), flushed(b))); }
};
/// The error is 2^-22: absolute near 1, else relative.
struct Lg2Ftz {
  float operator()(float x) const {
    const float y = float(std::log2(double(flushed(x))));
    if (!(x > 0.5f && x < 2)) return nudged(y, 2);
    return nudges() && y != 0 ? flushed(nudged(y, 1) > y ? y + 0x1p-22f : y - 0x1p-22f) : y;
  }
};
struct RsqrtFtz {
  float operator()(float x) const {
    const float in = flushed(x);
    return in == 0 ? 1 / in : nudged(float(1 / std::sqrt(double(in))), 1);
  }
};
/// As RcpFtzOfDouble.
struct RsqrtFtzOfDouble {
  double operator()(double x) const {
    constexpr uint64_t upper = 0xffffffff00000000;
    const double in = flushed(bits_as<double>(bits_as<uint64_t>(x) & upper));
    return bits_as<double>(bits_as<uint64_t>(in == 0 ? 1 / in : 1 / std::sqrt(in)) & upper);
  }
};

}  // namespace

void add_approximations(Operations& all) {
  add_unary<Ex2, F32>(all, "ex2.approx.");
  add_unary<Ex2Ftz, F32>(all, "ex2.approx.ftz.");
  add_unary<RcpFtz, F32>(all, "rcp.approx.ftz.");
  add_unary<RcpFtzOfDouble, F64>(all, "rcp.approx.ftz.");
  add_binary<DivApprox, F32>(all, "div.approx.");
  add_binary<DivApproxFtz, F32>(all, "div.approx.ftz.");
  add_unary<Lg2Ftz, F32>(all, "lg2.approx.ftz.");
  add_unary<RsqrtFtz, F32>(all, "rsqrt.approx.ftz.");
  add_unary<RsqrtFtzOfDouble, F64>(all, "rsqrt.approx.ftz.");
}

// Bits and shifts of integers, and sums with a carry.

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

// Copies between registers; several registers packed into one, or one unpacked.

namespace {

struct Same {
  template <class T> T operator()(T a) const { return a; }
};

/// mov.b32 d, {a, b}: the first is the lowest.
void pack(Machine& m, const Instruction& i, const Lanes& lanes) {
  std::byte* const d = m.result<std::byte>(i);
  const std::size_t whole = i.operands[0].width;
  std::size_t place = 0;
  for (int n = 1; n < i.operand_count; ++n) {
    const std::byte* const from = m.value<std::byte>(i, n);
    const std::size_t part = i.operands[n].width;
    lanes.each([=](int l) { std::memcpy(d + l * whole + place, from + l * part, part); });
    place += part;
  }
}
/// mov.b32 {a, b}, d
void unpack(Machine& m, const Instruction& i, const Lanes& lanes) {
  const int parts = i.operand_count - 1;
  const std::byte* const from = m.value<std::byte>(i, parts);
  const std::size_t whole = i.operands[parts].width;
  std::size_t place = 0;
  for (int n = 0; n < parts; ++n) {
    std::byte* const d = m.result<std::byte>(i, n);
    const std::size_t part = i.operands[n].width;
    lanes.each([=](int l) { std::memcpy(d + l * part, from + l * whole + place, part); });
    place += part;
  }
}

}  // namespace

void add_moves(Operations& all) {
  add_unary<Same, Pred, B16, U16, S16, U32, S32, F32, U64, S64, F64>(all, "mov.");
  for (Operation* move : {&all.add("mov.b32", unary<uint32_t, Same>, {4}),
                          &all.add("mov.b64", unary<uint64_t, Same>, {8})})
    move->form = Form::move, move->packing = pack, move->unpacking = unpack;
}

}  // namespace halftone::ptx
