// A build without cuDNN uses the own convolution and attention.
#include <halftone/backends/cuda/for_cudnn.h>

namespace halftone::cuda::cudnn {
std::string description() { return "no cuDNN"; }
bool conv(Context&, const Tensor&, const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
bool conv_backward_data(Context&, const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
bool conv_backward_weights(Context&, const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
bool attention(Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
               const AttentionSettings&, Tensor&, Tensor&) {
  return false;
}
bool attention_backward(Context&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                        const AttentionSettings&, const Tensor&, const Tensor&, const Tensor&,
                        Tensor&, Tensor&, Tensor&) {
  return false;
}
}  // namespace halftone::cuda::cudnn
