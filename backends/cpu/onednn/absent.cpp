// A build without oneDNN declines every request.
#include <halftone/backends/cpu/onednn/onednn.h>

namespace halftone::onednn {

bool matmul(const Tensor&, const Tensor&, const Tensor&, Tensor&) { return false; }
bool conv(const Tensor&, const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
bool conv_backward_data(const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
bool conv_backward_weights(const Tensor&, const Tensor&, const ConvGeometry&, Tensor&) {
  return false;
}
std::string description() { return "no oneDNN (install libdnnl-dev and configure again)"; }
std::string last_implementation() { return {}; }

}  // namespace halftone::onednn
