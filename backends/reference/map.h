// map<T>(function, y, x...): y[i] = function(x[i]...) over strided tensors of any dtypes, computed
// in T.
// Equivalent to: for every index i, y[i] = convert<>(function(convert<T>(x[i])...)).
#pragma once

#include <type_traits>
#include <utility>

#include <halftone/backends/reference/runs.h>

namespace halftone::reference {

/// Undefined inputs are read as zeros; y may be one of the inputs.
template <class T, class Function, class... Inputs>
void map(const Function& function, const Tensor& y, const Inputs&... inputs) {
  constexpr int input_count = sizeof...(inputs);
  const Tensor* const tensors[] = {&inputs...};
  const LoopNest<input_count + 1> nest(y, inputs...);
  nest.parallel_runs([&](const Offsets<input_count + 1>& offsets,
                         const Offsets<input_count + 1>& steps, int64_t count) {
    T values[input_count][block_length];
    for (std::size_t t = 0; t < input_count; ++t)
      load(*tensors[t], offsets[t + 1], steps[t + 1], count, values[t]);
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      using Result = decltype(function(values[I][0]...));
      Result results[block_length];
      for (int64_t i = 0; i < count; ++i) results[i] = function(values[I][i]...);
      store(results, count, y, offsets[0], steps[0]);
    }
    (std::index_sequence_for<Inputs...>{});
  });
}

}  // namespace halftone::reference
