// Compiles the pipeline for operations of the catalog, once in the library. Each compiled_*.cpp
// takes a part of AllOps, so that an operation on that list is compiled without being named
// again.
#pragma once

#include <halftone/autograd/apply.h>

namespace halftone::detail {

template <std::size_t Count, Operation Op> Tensor apply_compiled(Op op, std::span<Tensor> inputs) {
  return apply_to<Count>(std::move(op), inputs);
}

/// Returns the number of tensors that forward() takes as separate parameters; 0 if it takes one
/// span of any number of them.
template <class Op, class... In> consteval std::size_t named_inputs(Tensor (Op::*)(const In&...)) {
  if constexpr ((std::same_as<In, Tensor> && ...)) return sizeof...(In);
  else return 0;
}
template <class Op> consteval std::size_t named_inputs(Tensor (Op::*)(std::span<const Tensor>)) {
  return 0;
}

/// Takes the addresses of apply_compiled() for these operations, so that the compiler generates it.
template <class... Op> const void* compiled(TypeList<Op...>) {
  static const void* const functions[] = {
      reinterpret_cast<const void*>(&apply_compiled<named_inputs(&Op::forward), Op>)...};
  return functions;
}

}  // namespace halftone::detail
