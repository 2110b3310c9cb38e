// Loops over rows, one for each number of operands.
#pragma once

#include <string>

#include "operations.h"

namespace halftone::ptx {

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
