// The own matrix products, threaded: c[m, n] = a b (+ bias), c row-major.
#pragma once

#include <halftone/backends/cpu/simd/kernels.h>

namespace halftone::cpu {

/// Where a product in f32 goes, and how.
struct Product {
  float* c;
  int64_t stride;               // between rows of c
  const float* bias = nullptr;  // [n]
  bool accumulate = false;      // c += a b
  bool parallel = true;         // false: on the calling thread, for batches with a product each
};
void gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
          const Product& to);

/// The same for bf16 by the CPU's instructions for it (only where has_bf16_products()), added up in
/// f32. a and b have a unit stride each.
struct Bf16Product {
  void* c;
  bool bf16;  // what c is; else f32
  int64_t stride;
  const float* bias = nullptr;
  bool parallel = true;
};
/// c in bf16 holds no partial sums: it takes products up to this depth.
inline constexpr int64_t bf16_depth = 4096;
void bf16_gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
               const Bf16Product& to);

}  // namespace halftone::cpu
