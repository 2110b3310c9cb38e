// The gradient of a convolution's input: cuDNN if it supports the call, otherwise a product of the
// outputs that read each pixel and the weights.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/cudnn/cudnn.h>
#include <halftone/backends/cuda/library_calls.h>
#include <halftone/backends/cuda/narrow_product.h>

namespace halftone {

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

}  // namespace halftone
