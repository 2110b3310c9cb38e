// f16 with F16C, eight at a time. Widening is exact and narrowing is correctly rounded, including
// subnormals.

#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

static void widen(const uint16_t* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  for (; i < n; ++i) y[i] = _cvtsh_ss(x[i]);
}

static void narrow(const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; ++i) y[i] = _cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
}

void fill_f16(Kernels& table) { table.widen_f16 = widen, table.narrow_f16 = narrow; }

}  // namespace halftone::simd::HALFTONE_ISA
