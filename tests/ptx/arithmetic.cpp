// Sums, products, quotients, minima: of floats to nearest, of integers modulo 2^bits.
#include "arithmetic.h"

#include <cmath>
#include <limits>
#include <type_traits>

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

}  // namespace halftone::ptx
