// Adds onto a tensor, and moves a tensor part of the way to another: sums of gradients, running
// statistics.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/elementwise.h>

namespace halftone {

namespace cuda {
namespace {

struct Added {
  template <class C> __device__ C operator()(C x, C y) const { return y + x; }
};
struct Moved {
  double weight;
  template <class C> __device__ C operator()(C x, C y) const { return y + C(weight) * (x - y); }
};

template <class C, class F>
__global__ void strided_kernel(F f, Layout<2> layout, bool small, Operand y, Operand x) {
  for (int64_t turn = global_thread(); turn < layout.turns; turn += all_threads()) {
    const Places<2> at = layout.at_turn(turn, small);
    store_as<C>(y, at.of[0], f(load_as<C>(x, at.of[1]), load_as<C>(y, at.of[0])));
  }
}

/// Computes y = f(x, y), in place.
template <class F> void combine(const Context& context, F f, const Tensor& x, Tensor& y) {
  const Layout<2> layout(y, x);
  const auto of_two = [&]<class A, class B>() {
    launch(context, mixed_kernel<A, B, B, F>, shape_for(context, y.numel(), 4), f, x.data<A>(),
           y.data<B>(), y.data<B>(), y.numel());
  };
  if (layout.turns > 0 && dense_alike(y, x)) {
    visit_floating(y.dtype(), "accumulate", [&]<class T>() { dense<T>(context, f, y, x, y); });
  } else if (layout.turns > 0 && !visit_mixed(x, y, y, of_two)) {
    const bool wide = x.dtype() == f64 || !is_floating(y.dtype()) || y.dtype() == f64;
    launch(context, wide ? strided_kernel<double, F> : strided_kernel<float, F>,
           shape_for(context, layout.turns), f, layout, layout.is_small(), Operand(y), Operand(x));
  }
  y.storage()->bump_version();
}

}  // namespace
}  // namespace cuda

void CudaBackend::accumulate(const Tensor& x, Tensor& y) {
  cuda::combine(context_, cuda::Added{}, x, y);
}

void CudaBackend::lerp(const Tensor& x, double weight, Tensor& y) {
  cuda::combine(context_, cuda::Moved{weight}, x, y);
}

}  // namespace halftone
