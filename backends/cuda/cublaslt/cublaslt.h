// Matrix products by cuBLASLt, for the calls that it supports.
#pragma once

#include <string>

#include <halftone/backends/cuda/context.h>

namespace halftone::cuda::cublaslt {

/// Returns whether cuBLASLt exists and is not switched off (HALFTONE_CUDA_LIBRARIES=off).
bool is_usable();
/// Returns "cuBLASLt 13.0", or the reason why it is missing.
std::string description();

/// Computes c[.., m, n] = a[.., m, k] b[.., k, n] + bias[n] as Backend::matmul. Returns false, and
/// does nothing, if cuBLASLt is not usable or declines, or if it would round the result before it
/// adds the bias.
bool matmul(Context& context, const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c);

}  // namespace halftone::cuda::cublaslt
