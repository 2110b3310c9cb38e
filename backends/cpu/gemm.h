// The own matrix product in f32, threaded: c[m, n] = a b (+ bias), c row-major.
#pragma once

#include <halftone/backends/cpu/simd/kernels.h>

namespace halftone::cpu {

/// `parallel` false keeps it on the calling thread (batches of small products run one per thread).
void gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
          const float* bias, float* c, bool parallel);

}  // namespace halftone::cpu
