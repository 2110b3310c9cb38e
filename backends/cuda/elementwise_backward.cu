// The derivatives of core/formulas.h over whole tensors, times the incoming gradient.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/elementwise.h>

namespace halftone {

namespace cuda {
namespace {

/// The formula reads only the one of x and y that it asked to save.
template <class F> struct BackwardOfOne {
  F f;
  template <class C> __device__ C operator()(C saved, C dy) const {
    return gradient_of(f, dy, saved);
  }
  template <class C> __device__ C operator()(C dy) const { return gradient_of(f, dy, C(0)); }
};
template <class F, int input> struct BackwardOfTwo {
  F f;
  template <class C> __device__ C operator()(C a, C b, C dy) const {
    return gradient_of<input>(f, dy, a, b);
  }
  template <class C> __device__ C operator()(C dy) const { return (*this)(C(0), C(0), dy); }
};

template <int input>
void binary_backward_dense(const Context& context, FormulaCall call, const Tensor& a,
                           const Tensor& b, const Tensor& dy, Tensor& dx) {
  visit_index(BinaryFormulas{}, call.index, [&]<class F>() {
    visit_floating(dx.dtype(), "binary", [&]<class T>() {
      const BackwardOfTwo<F, input> f{formula_of<F>(call)};
      if constexpr (F::constant_derivative) dense<T>(context, f, dx, dy);
      else dense<T>(context, f, dx, a, b, dy);
    });
  });
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::unary_backward(FormulaCall call, const Tensor& saved, const Tensor& dy,
                                 Tensor& dx) {
  const bool dense_all = saved.defined() ? dense_alike(dx, saved, dy) : dense_alike(dx, dy);
  if (!dense_all) return unary_backward_strided(context_, call, saved, dy, dx);
  visit_index(UnaryFormulas{}, call.index, [&]<class F>() {
    visit_floating(dx.dtype(), "unary", [&]<class T>() {
      const BackwardOfOne<F> f{formula_of<F>(call)};
      if constexpr (F::saves == Saves::nothing) dense<T>(context_, f, dx, dy);
      else dense<T>(context_, f, dx, saved, dy);
    });
  });
}

void CudaBackend::binary_backward(FormulaCall call, int input, const Tensor& a, const Tensor& b,
                                  const Tensor& dy, Tensor& dx) {
  const bool reads = a.defined();
  const bool dense_all = reads ? dense_alike(dx, a, b, dy) : dense_alike(dx, dy);
  if (!dense_all) binary_backward_strided(context_, call, input, a, b, dy, dx);
  else if (input == 0) binary_backward_dense<0>(context_, call, a, b, dy, dx);
  else binary_backward_dense<1>(context_, call, a, b, dy, dx);
}

}  // namespace halftone
