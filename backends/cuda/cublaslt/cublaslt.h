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
/// c[m, n] = a[m, k] b[k, n] without a bias, and sums[m] = sum of a over k, for which a is not read
/// again; under the same conditions.
bool matmul_and_row_sums(Context& context, const Tensor& a, const Tensor& b, Tensor& c,
                         Tensor& sums);

}  // namespace halftone::cuda::cublaslt
