// A build without cuBLASLt uses the own matrix product.
#include <halftone/backends/cuda/for_cudnn.h>

namespace halftone::cuda::cublaslt {
std::string description() { return "no cuBLASLt"; }
bool matmul(Context&, const Tensor&, const Tensor&, const Tensor&, Tensor&) { return false; }
}  // namespace halftone::cuda::cublaslt
