// The gradients of a convolution's weights and bias: cuDNN if it supports the call, otherwise a
// product of dy and windows of x over all pixels, and sums of the columns of dy.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/cudnn/cudnn.h>
#include <halftone/backends/cuda/library_calls.h>
#include <halftone/backends/cuda/narrow_product.h>

namespace halftone {

namespace cuda {
namespace {

/// dw[out channel][in channel][tap] = sum.
template <class C> struct StoreWeights {
  Operand dw;
  int64_t out, in, taps;
  __device__ void operator()(int64_t group, int64_t i, int64_t j, C sum) const {
    store_floating(dw, ((group * out + i) * in + j % in) * taps + j / in, sum);
  }
};

/// A matrix of ones on the right, which turns a product into sums of columns.
template <class C> struct Ones {
  using Value = C;
  using Line = int;
  using Level = int;
  __device__ Line line(int64_t, int64_t) const { return 0; }
  __device__ Level level(int64_t) const { return 0; }
  __device__ Value at(Line, Level) const { return 1; }
};
template <class C> struct StoreVector {
  Operand y;
  __device__ void operator()(int64_t, int64_t i, int64_t, C sum) const {
    store_floating(y, i, sum);
  }
};

template <class T>
void weights_gradient(const Context& context, const Tensor& x, const Tensor& dy, const ConvSizes& s,
                      const Tensor& dw) {
  const ProductSizes sizes{s.groups, s.out, int64_t(s.taps()) * s.in, s.out_pixels()};
  const MatrixFactor<T> gradients{dy.data<T>(), s.out, 1, s.out_channels()};
  const WindowColumns<T> windows(x, s);
  const StoreWeights<compute_t<T>> store{Operand(dw), s.out, s.in, s.taps()};
  if (is_narrow(s, s.out)) narrow_deep_product(context, gradients, windows, store, sizes);
  else product(context, gradients, windows, store, sizes);
}

template <class T>
void bias_gradient(const Context& context, const Tensor& dy, const ConvSizes& s,
                   const Tensor& dbias) {
  using C = compute_t<T>;
  const int64_t channels = s.out_channels();
  const MatrixFactor<T> gradients{dy.data<T>(), 0, 1, channels};
  narrow_deep_product(context, gradients, Ones<C>{}, StoreVector<C>{Operand(dbias)},
                      {1, channels, 1, s.out_pixels()});
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::conv_backward_weights(const Tensor& x, const Tensor& dy, const ConvGeometry& g,
                                        Tensor& dw, Tensor& dbias) {
  const ConvSizes s(x, dw, g, dy);
  const bool empty = x.numel() == 0 || dy.numel() == 0;
  const bool done = !empty && cudnn::conv_backward_weights(context_, x, dy, g, dw);
  count_call(Family::conv_backward_weights, done ? By::cudnn : By::own_kernel);
  visit_floating(x.dtype(), "conv_backward_weights", [&]<class T>() {
    if (!done) weights_gradient<T>(context_, x, dy, s, dw);
    if (dbias.defined()) bias_gradient<T>(context_, dy, s, dbias);
  });
}

}  // namespace halftone
