// Matrix products by cuBLASLt, for the calls that it supports.
#pragma once

#include <string>

#include <halftone/backends/cuda/context.h>

namespace halftone::cuda::cublaslt {

/// Returns "cuBLASLt 13.0", or the reason why it is missing.
std::string description();

/// Computes c[.., m, n] = a[.., m, k] b[.., k, n] + bias[n] as Backend::matmul. Returns false, and
/// does nothing, if cuBLASLt is absent, switched off (HALFTONE_CUDA_LIBRARIES=off) or declines.
bool matmul(Context& context, const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c);
/// Computes c[m, n] = a[m, k] b[k, n] without a bias, and sums[m] = sum of a over k without a
/// second read of a. Returns false under the same conditions.
bool matmul_and_row_sums(Context& context, const Tensor& a, const Tensor& b, Tensor& c,
                         Tensor& sums);

}  // namespace halftone::cuda::cublaslt
