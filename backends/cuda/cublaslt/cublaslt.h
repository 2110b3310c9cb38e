// Matrix products by cuBLASLt, as far as it takes them.
#pragma once

#include <string>

#include <halftone/backends/cuda/context.h>

namespace halftone::cuda::cublaslt {

/// "cuBLASLt 13.0", or why there is none.
std::string description();

/// c[.., m, n] = a[.., m, k] b[.., k, n] + bias[n] as Backend::matmul; false if cuBLASLt is absent,
/// switched off (HALFTONE_CUDA_LIBRARIES=off) or declines: then nothing has been done.
bool matmul(Context& context, const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c);

}  // namespace halftone::cuda::cublaslt
