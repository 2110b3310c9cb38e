// Elementwise loops. Tensors with one dense layout and one dtype go through dense(): packs of 16
// bytes, with the formula compiled in. All others (broadcasting, strides, mixed dtypes) go through
// elementwise.cu, which looks up formula and dtypes element by element.
#pragma once

#include <array>

#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/backend.h>

namespace halftone::cuda {

template <class T, int N> struct Inputs { const T* of[N]; };

/// Computes y[i] = f(inputs[i]...) for n elements; packs of `size` are aligned.
template <int size, class T, int N, class F>
__global__ void dense_kernel(F f, Inputs<T, N> inputs, T* y, int64_t n) {
  using Values = Pack<T, size>;
  for (int64_t pack = global_thread(); pack < n / size; pack += all_threads()) {
    Values in[N], out;
    for (int k = 0; k < N; ++k) in[k] = reinterpret_cast<const Values*>(inputs.of[k])[pack];
    for (int i = 0; i < size; ++i) {
      if constexpr (N == 1) out.values[i] = narrow<T>(f(widen(in[0].values[i])));
      else if constexpr (N == 2)
        out.values[i] = narrow<T>(f(widen(in[0].values[i]), widen(in[1].values[i])));
      else
        out.values[i] =
            narrow<T>(f(widen(in[0].values[i]), widen(in[1].values[i]), widen(in[2].values[i])));
    }
    reinterpret_cast<Values*>(y)[pack] = out;
  }
  const int64_t i = n - n % size + global_thread();  // the remainder is shorter than a pack
  if (size == 1 || i >= n) return;
  if constexpr (N == 1) y[i] = narrow<T>(f(widen(inputs.of[0][i])));
  else if constexpr (N == 2) y[i] = narrow<T>(f(widen(inputs.of[0][i]), widen(inputs.of[1][i])));
  else y[i] = narrow<T>(f(widen(inputs.of[0][i]), widen(inputs.of[1][i]), widen(inputs.of[2][i])));
}

/// Returns whether dense() supports the tensors: one dtype, one dense layout, aligned.
template <class... Rest> bool dense_alike(const Tensor& y, const Rest&... rest) {
  const Layout<1 + int(sizeof...(Rest))> layout(y, rest...);
  return layout.is_dense() && is_floating(y.dtype()) && size_of(y.dtype()) > 1 &&
         begins_aligned(y) && ((rest.dtype() == y.dtype() && begins_aligned(rest)) && ...);
}

template <class T, class F, class... In>
void dense(const Context& context, F f, Tensor& y, const In&... in) {
  constexpr int N = int(sizeof...(In)), size = pack_size<T>;
  const int64_t n = y.numel();
  if (n == 0) return;
  launch(context, dense_kernel<size, T, N, F>, shape_for(context, n, size), f,
         Inputs<T, N>{{in.template data<T>()...}}, y.data<T>(), n);
}

/// Computes y[i] = f(a[i], b[i]) for different dtypes, rounded once; four elements at a time.
template <class A, class B, class Y, class F>
__global__ void mixed_kernel(F f, const A* a, const B* b, Y* y, int64_t n) {
  constexpr int size = 4;
  for (int64_t pack = global_thread(); pack < n / size; pack += all_threads()) {
    const auto u = reinterpret_cast<const Pack<A, size>*>(a)[pack];
    const auto v = reinterpret_cast<const Pack<B, size>*>(b)[pack];
    Pack<Y, size> out;
    for (int i = 0; i < size; ++i)
      out.values[i] = narrow<Y>(f(widen(u.values[i]), widen(v.values[i])));
    reinterpret_cast<Pack<Y, size>*>(y)[pack] = out;
  }
  const int64_t i = n - n % size + global_thread();
  if (i < n) y[i] = narrow<Y>(f(widen(a[i]), widen(b[i])));
}

/// Calls run.operator()<A, B>() if one of a and b is f32 and the other a short float, and both have
/// y's layout. Returns whether it did.
template <class Run>
bool visit_mixed(const Tensor& a, const Tensor& b, const Tensor& y, const Run& run) {
  const auto is_short = [](DType dtype) { return dtype == f16 || dtype == bf16; };
  const bool first = a.dtype() == f32 && is_short(b.dtype());
  if (!first && !(is_short(a.dtype()) && b.dtype() == f32)) return false;
  if (!Layout<3>(y, a, b).is_dense()) return false;
  if (!begins_aligned(a) || !begins_aligned(b) || !begins_aligned(y)) return false;
  const bool is_half = (first ? b : a).dtype() == f16;
  if (first && is_half) run.template operator()<float, Float16>();
  else if (first) run.template operator()<float, BFloat16>();
  else if (is_half) run.template operator()<Float16, float>();
  else run.template operator()<BFloat16, float>();
  return true;
}

// elementwise.cu
void unary_strided(const Context&, FormulaCall, const Tensor& x, Tensor& y);
void unary_backward_strided(const Context&, FormulaCall, const Tensor& saved, const Tensor& dy,
                            Tensor& dx);
void binary_strided(const Context&, FormulaCall, const Tensor& a, const Tensor& b, Tensor& y);
void binary_backward_strided(const Context&, FormulaCall, int input, const Tensor& a,
                             const Tensor& b, const Tensor& dy, Tensor& dx);

}  // namespace halftone::cuda
