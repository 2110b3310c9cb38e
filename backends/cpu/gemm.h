// The own matrix product in f32, threaded: c[m, n] = a b (+ bias), c row-major.
#pragma once

#include <halftone/backends/cpu/simd/kernels.h>

namespace halftone::cpu {

/// Where a product goes, and how.
struct Product {
  float* c;
  int64_t stride;               // between rows of c
  const float* bias = nullptr;  // [n]
  bool accumulate = false;      // c += a b
  bool parallel = true;         // false: on the calling thread, for batches with a product each
};
void gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
          const Product& to);

}  // namespace halftone::cpu
