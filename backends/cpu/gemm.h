// The own matrix products, threaded: c[m, n] = a b (+ bias), c row-major.
#pragma once

#include <algorithm>

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

/// So many products are added up in a row before they join the rest. Of a long row of tiles the
/// sums stay in registers for all of the depth; small products wait for loads and calls anyway.
inline int64_t chain_of(int64_t m, int64_t n, int64_t depth) {
  const bool few_rows = m <= 4, small = m * n <= 64 * 64;
  return few_rows ? 16 : small ? 32 : depth;
}

/// A tile of c from packed panels, in chains of products.
struct TileProduct {
  const float *a, *b;
  int64_t depth, b_step, rows, columns;
  const float* bias;
  bool accumulate;
  float* c;
  int64_t stride;
};
inline void multiply_tile(const simd::Kernels& kernels, int64_t chain, const TileProduct& t) {
  for (int64_t d = 0; d < t.depth; d += chain)
    kernels.tile_product(std::min(chain, t.depth - d), t.a + d * kernels.tile_rows,
                         t.b + d * t.b_step, t.b_step, t.rows, t.columns, d == 0 ? t.bias : nullptr,
                         t.accumulate || d > 0, t.c, t.stride);
}

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
