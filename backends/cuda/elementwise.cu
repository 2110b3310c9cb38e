// The formulas of core/formulas.h over whole tensors.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/elementwise.h>

namespace halftone {

namespace cuda {
namespace {

template <class F> struct ForwardOfOne {
  F f;
  template <class C> __device__ C operator()(C x) const { return f.forward(x); }
};
template <class F> struct ForwardOfTwo {
  F f;
  template <class C> __device__ C operator()(C a, C b) const { return f.forward(a, b); }
};

/// Computes y[i] = a[i] compared with b[i]: dtypes are looked up, C holds both exactly.
template <class C>
__global__ void compare_kernel(FormulaCall call, Layout<3> layout, bool small, bool* y, Operand a,
                               Operand b) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<3> at = layout.at_turn(turn, small);
    const C u = load_as<C>(a, at.of[1]), v = load_as<C>(b, at.of[2]);
    visit_index(CompareFormulas{}, call.index,
                [&]<class F>() { y[at.of[0]] = formula_of<F>(call).forward(u, v); });
  }
}

/// Handles sums and differences of f32 and short floats, such as a residual connection.
bool mixed(const Context& context, FormulaCall call, const Tensor& a, const Tensor& b, Tensor& y) {
  if (y.dtype() != f32 || y.numel() == 0) return false;
  bool done = false;
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    if constexpr (is_in_list<F, TypeList<formula::Add, formula::Sub>>)
      done = visit_mixed(a, b, y, [&]<class A, class B>() {
        launch(context, mixed_kernel<A, B, float, ForwardOfTwo<F>>,
               shape_for(context, y.numel(), 4), ForwardOfTwo<F>{formula_of<F>(call)}, a.data<A>(),
               b.data<B>(), y.data<float>(), y.numel());
      });
  });
  return done;
}

bool fits_float(const Tensor& x) { return is_floating(x.dtype()) && x.dtype() != f64; }

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::unary(FormulaCall call, const Tensor& x, Tensor& y) {
  if (!dense_alike(y, x)) return unary_strided(context_, call, x, y);
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    visit_floating(y.dtype(), "unary", [&]<class T>() {
      dense<T>(context_, ForwardOfOne<F>{formula_of<F>(call)}, y, x);
    });
  });
}

void CudaBackend::binary(FormulaCall call, const Tensor& a, const Tensor& b, Tensor& y) {
  if (!dense_alike(y, a, b)) {
    if (!mixed(context_, call, a, b, y)) binary_strided(context_, call, a, b, y);
    return;
  }
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    visit_floating(y.dtype(), "binary", [&]<class T>() {
      dense<T>(context_, ForwardOfTwo<F>{formula_of<F>(call)}, y, a, b);
    });
  });
}

void CudaBackend::compare(FormulaCall call, const Tensor& a, const Tensor& b, Tensor& y) {
  const Layout<3> layout(y, a, b);
  if (layout.turns == 0) return;
  const auto run = [&](auto kernel) {
    launch(context_, kernel, shape_for(context_, layout.turns), call, layout, layout.is_small(),
           y.data<bool>(), Operand(a), Operand(b));
  };
  if (fits_float(a) && fits_float(b)) run(compare_kernel<float>);
  else if (is_floating(a.dtype()) || is_floating(b.dtype())) run(compare_kernel<double>);
  else run(compare_kernel<int64_t>);
}

}  // namespace halftone
