// Convolution forward: cuDNN if it supports the call, otherwise a product of windows and weights.
#include <halftone/backends/cuda/conv_factors.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/for_cudnn.h>
#include <halftone/backends/cuda/libraries.h>

namespace halftone {

using namespace cuda;

void CudaBackend::conv(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvGeometry& g,
                       Tensor& y) {
  if (y.numel() == 0) return;
  if (cudnn::conv(context_, x, w, bias, g, y)) return count_call(Family::conv, By::cudnn);
  count_call(Family::conv, By::own_kernel);
  const ConvSizes s(x, w, g, y);
  const ProductSizes sizes{s.groups, s.out_pixels(), s.out, int64_t(s.taps()) * s.in};
  visit_floating(x.dtype(), "conv", [&]<class T>() {
    const StorePixels<compute_t<T>> store{Operand(y), Operand(bias), s.out_channels(), s.out};
    const WindowRows<T> windows(x, s);
    const auto weights = Weights<T>::of_output(w, s);
    if (is_narrow(s, s.out)) narrow_product(context_, windows, weights, store, sizes);
    else product(context_, windows, weights, store, sizes);
  });
}

// The gradient of a convolution's input: cuDNN if it supports the call, otherwise a product of the
// outputs that read each pixel and the weights.

using namespace cuda;

void CudaBackend::conv_backward_data(const Tensor& dy, const Tensor& w, const ConvGeometry& g,
                                     Tensor& dx) {
  if (dx.numel() == 0) return;
  if (dy.numel() > 0 && cudnn::conv_backward_data(context_, dy, w, g, dx))
    return count_call(Family::conv_backward_data, By::cudnn);
  count_call(Family::conv_backward_data, By::own_kernel);
  const ConvSizes s(dx, w, g, dy);
  const ProductSizes sizes{s.groups, s.in_pixels(), s.in, int64_t(s.taps()) * s.out};
  visit_floating(dy.dtype(), "conv_backward_data", [&]<class T>() {
    const StorePixels<compute_t<T>> store{Operand(dx), Operand(), s.in_channels(), s.in};
    const ReaderRows<T> readers(dy, s);
    const auto weights = Weights<T>::of_input(w, s);
    if (is_narrow(s, s.in)) narrow_product(context_, readers, weights, store, sizes);
    else product(context_, readers, weights, store, sizes);
  });
}

// The gradients of a convolution's weights and bias: cuDNN if it supports the call, otherwise a
// product of dy and windows of x over all pixels, and sums of the columns of dy.

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
