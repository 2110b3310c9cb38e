// Own matrix products with threads: c[m, n] = a b (+ bias), c row-major.
#pragma once

#include <halftone/backends/cpu/simd/kernels.h>

namespace halftone::cpu {

/// The destination of an f32 product and its options.
struct Product {
  float* c;
  int64_t stride;               // between rows of c
  const float* bias = nullptr;  // [n]
  bool accumulate = false;      // c += a b
  bool parallel = true;         // false: on the calling thread, for batches with one product per
                                // thread
};
void gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
          const Product& to);

/// The same for bf16 with the CPU's bf16 instructions (only if has_bf16_products()), added up in
/// f32. a and b each have a unit stride.
struct Bf16Product {
  void* c;
  bool bf16;  // the dtype of c: bf16 or f32
  int64_t stride;
  const float* bias = nullptr;
  bool parallel = true;
};
/// A bf16 c cannot store partial sums, so its products have at most this depth.
inline constexpr int64_t bf16_depth = 4096;
void bf16_gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
               const Bf16Product& to);

}  // namespace halftone::cpu
