// Convolution forward: cuDNN if it supports the call, otherwise a product of windows and weights.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/cudnn/cudnn.h>
#include <halftone/backends/cuda/library_calls.h>
#include <halftone/backends/cuda/narrow_product.h>

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

}  // namespace halftone
