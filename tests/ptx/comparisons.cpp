// Comparisons, selections and the logic of predicates; conversions between types.
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

/// An ordered comparison with a NaN is false, an unordered one (equ, ltu, ...) is true.
template <class T> bool unordered(T a, T b) { return a != a || b != b; }

struct Eq {
  template <class T> bool operator()(T a, T b) const { return a == b; }
};
struct Ne {
  template <class T> bool operator()(T a, T b) const { return a != b && !unordered(a, b); }
};
struct Lt {
  template <class T> bool operator()(T a, T b) const { return a < b; }
};
struct Le {
  template <class T> bool operator()(T a, T b) const { return a <= b; }
};
struct Gt {
  template <class T> bool operator()(T a, T b) const { return a > b; }
};
struct Ge {
  template <class T> bool operator()(T a, T b) const { return a >= b; }
};
struct Num {
  template <class T> bool operator()(T a, T b) const { return !unordered(a, b); }
};
struct Nan {
  template <class T> bool operator()(T a, T b) const { return unordered(a, b); }
};
template <class Op> struct Or {
  template <class T> bool operator()(T a, T b) const { return unordered(a, b) || Op()(a, b); }
};

template <class T, class Op> void setp(Machine& m, const Instruction& i, const Lanes& lanes) {
  uint8_t* const d = m.result<uint8_t>(i);
  const T *const a = m.value<T>(i, 1), *const b = m.value<T>(i, 2);
  lanes.each([=](int l) { d[l] = Op()(a[l], b[l]); });
}
template <class Op, class... Types> void add_setp(Operations& all, const std::string& name) {
  (all.add("setp." + name + "." + Types::name, setp<typename Types::T, Op>,
           {1, sizeof(typename Types::T)}),
   ...);
}
template <class Op> void add_ordered(Operations& all, const std::string& name) {
  add_setp<Op, S16, U16, S32, U32, S64, U64, F32, F64>(all, name);
}

template <class T> void selp(Machine& m, const Instruction& i, const Lanes& lanes) {
  T* const d = m.result<T>(i);
  const T *const a = m.value<T>(i, 1), *const b = m.value<T>(i, 2);
  const uint8_t* const first = m.value<uint8_t>(i, 3);
  const uint8_t inverted = i.operands[3].inverted;
  lanes.each([=](int l) { d[l] = (first[l] ^ inverted) ? a[l] : b[l]; });
}
template <class... Types> void add_selp(Operations& all) {
  (all.add(std::string("selp.") + Types::name, selp<typename Types::T>,
           {sizeof(typename Types::T), sizeof(typename Types::T), sizeof(typename Types::T), 1}),
   ...);
}

struct And {
  uint8_t operator()(uint8_t a, uint8_t b) const { return a & b; }
};
struct Either {
  uint8_t operator()(uint8_t a, uint8_t b) const { return a | b; }
};
struct Xor {
  uint8_t operator()(uint8_t a, uint8_t b) const { return a ^ b; }
};
struct Not {
  uint8_t operator()(uint8_t a) const { return !a; }
};

}  // namespace

void add_comparisons(Operations& all) {
  add_ordered<Eq>(all, "eq"), add_ordered<Ne>(all, "ne");
  add_ordered<Lt>(all, "lt"), add_ordered<Le>(all, "le");
  add_ordered<Gt>(all, "gt"), add_ordered<Ge>(all, "ge");
  add_setp<Eq, B16, B32, B64>(all, "eq"), add_setp<Ne, B16, B32, B64>(all, "ne");
  add_setp<Or<Eq>, F32, F64>(all, "equ"), add_setp<Or<Ne>, F32, F64>(all, "neu");
  add_setp<Or<Lt>, F32, F64>(all, "ltu"), add_setp<Or<Le>, F32, F64>(all, "leu");
  add_setp<Or<Gt>, F32, F64>(all, "gtu"), add_setp<Or<Ge>, F32, F64>(all, "geu");
  add_setp<Num, F32, F64>(all, "num"), add_setp<Nan, F32, F64>(all, "nan");
  add_selp<B16, U16, S16, B32, U32, S32, B64, U64, S64, F32, F64>(all);
  add_binary<And, Pred>(all, "and."), add_binary<Either, Pred>(all, "or.");
  add_binary<Xor, Pred>(all, "xor."), add_unary<Not, Pred>(all, "not.");
}

// Conversions between types. A 16-bit float uses a register of 16 bits; an 8-bit integer does as
// well.

namespace {

/// One value of the row of the source makes one of the row of the result.
template <class To, class From, class Op>
void convert(Machine& m, const Instruction& i, const Lanes& lanes) {
  To* const d = m.result<To>(i);
  const From* const a = m.value<From>(i, 1);
  lanes.each([=](int l) { d[l] = To(Op()(a[l])); });
}
template <class To, class From, class Op> void add(Operations& all, const std::string& name) {
  all.add("cvt." + name, convert<To, From, Op>, {sizeof(To), sizeof(From)});
}

struct Same {
  template <class T> T operator()(T a) const { return a; }
};
struct LowByte {
  template <class T> int8_t operator()(T a) const { return int8_t(a); }
};
template <class To> void add_of_byte(Operations& all, const std::string& name) {
  Operation& operation = all.add("cvt." + name + ".s8", nullptr, {sizeof(To)});
  operation.form = Form::low_byte;
  operation.by_width[0] = convert<To, uint16_t, LowByte>,
  operation.by_width[1] = convert<To, uint32_t, LowByte>;
}
template <class To, class... From> void add_integers_from(Operations& all) {
  (add<typename To::T, typename From::T, Same>(all, std::string(To::name) + "." + From::name), ...);
}
template <class To, class... From> void add_floats_of_integers(Operations& all) {
  (add<typename To::T, typename From::T, Same>(all,
                                               std::string("rn.") + To::name + "." + From::name),
   ...);
}

struct Nearest {
  template <class T> T operator()(T a) const { return std::nearbyint(a); }
};
struct ToZero {
  template <class T> T operator()(T a) const { return std::trunc(a); }
};
struct Down {
  template <class T> T operator()(T a) const { return std::floor(a); }
};
struct Up {
  template <class T> T operator()(T a) const { return std::ceil(a); }
};

/// Returns the nearest integer of type To. A NaN gives 0; from f64 or to 64 bits, only the highest
/// bit.
template <class To, class Round> struct Saturated {
  template <class From> To operator()(From a) const {
    constexpr bool wide = sizeof(To) == 8 || sizeof(From) == 8;
    if (std::isnan(a)) return wide ? To(uint64_t(1) << (8 * sizeof(To) - 1)) : To(0);
    const double whole = double(Round()(a));
    constexpr double bound = -2.0 * double(std::numeric_limits<std::make_signed_t<To>>::min());
    constexpr double least = std::is_signed_v<To> ? -bound / 2 : 0,
                     above = std::is_signed_v<To> ? bound / 2 : bound;
    if (whole < least) return std::numeric_limits<To>::min();
    if (whole >= above) return std::numeric_limits<To>::max();
    return To(whole);
  }
};
template <class Round, class From> void add_integers_of(Operations& all, const std::string& round) {
  using T = typename From::T;
  const std::string from = std::string(".") + From::name;
  add<int32_t, T, Saturated<int32_t, Round>>(all, round + ".s32" + from);
  add<uint32_t, T, Saturated<uint32_t, Round>>(all, round + ".u32" + from);
  add<int64_t, T, Saturated<int64_t, Round>>(all, round + ".s64" + from);
  add<uint64_t, T, Saturated<uint64_t, Round>>(all, round + ".u64" + from);
}
template <class Round> void add_rounding(Operations& all, const std::string& round) {
  add_integers_of<Round, F32>(all, round), add_integers_of<Round, F64>(all, round);
  add<float, float, Round>(all, round + ".f32.f32");
  add<double, double, Round>(all, round + ".f64.f64");
}

/// Within 0 and 1; a NaN becomes 0.
struct Unit {
  float operator()(float a) const { return a > 0 ? (a < 1 ? a : 1.0f) : 0.0f; }
};

/// 16-bit floats, converted by the CPU's instructions or by integers, and not by the tested code.
/// Every NaN becomes 0x7fff, as on hardware.
struct FromHalf {
  float operator()(uint16_t a) const { return _cvtsh_ss(a); }
};
struct ToHalf {
  uint16_t operator()(float a) const {
    return std::isnan(a) ? uint16_t(0x7fff) : uint16_t(_cvtss_sh(a, _MM_FROUND_TO_NEAREST_INT));
  }
};
struct ToBrain {
  uint16_t operator()(float a) const {
    const uint32_t bits = bits_as<uint32_t>(a);
    return std::isnan(a) ? uint16_t(0x7fff) : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
};

}  // namespace

void add_conversions(Operations& all) {
  add_integers_from<U16, U32, S32, U64>(all), add_integers_from<S16, S32>(all);
  add_integers_from<U32, U16, S16, U64>(all), add_integers_from<S32, S16, U16, S64>(all);
  add_integers_from<U64, U16, U32>(all), add_integers_from<S64, S16, S32>(all);
  add_of_byte<int16_t>(all, "s16"), add_of_byte<int32_t>(all, "s32"),
      add_of_byte<int64_t>(all, "s64");
  add_floats_of_integers<F32, S16, U16, S32, U32, S64, U64>(all);
  add_floats_of_integers<F64, S16, U16, S32, U32, S64, U64>(all);
  add_rounding<Nearest>(all, "rni"), add_rounding<ToZero>(all, "rzi");
  add_rounding<Down>(all, "rmi"), add_rounding<Up>(all, "rpi");
  add<float, double, Same>(all, "rn.f32.f64"), add<double, float, Same>(all, "f64.f32");
  add<float, float, Unit>(all, "sat.f32.f32");
  add<float, uint16_t, FromHalf>(all, "f32.f16");
  add<uint16_t, float, ToHalf>(all, "rn.f16.f32");
  add<uint16_t, float, ToBrain>(all, "rn.bf16.f32");
}

}  // namespace halftone::ptx
