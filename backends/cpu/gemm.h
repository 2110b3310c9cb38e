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

/// The same for bf16 on AMX (only where use_amx()), added up in f32. a and b have a unit stride
/// each.
struct AmxProduct {
  void* c;
  bool bf16;  // what c is; else f32
  int64_t stride;
  const float* bias = nullptr;
  bool parallel = true;
};
/// c in bf16 holds no partial sums: it takes products up to this depth.
inline constexpr int64_t amx_depth = 4096;
void amx_gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
              const AmxProduct& to);

}  // namespace halftone::cpu
