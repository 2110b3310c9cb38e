// Comparisons, selections, and the logic of predicates.
#include <type_traits>

#include "arithmetic.h"

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

}  // namespace halftone::ptx
