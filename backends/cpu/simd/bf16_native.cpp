// bf16 by AVX512-BF16. The instruction treats subnormal floats as zero, which our rounding does
// not: the rare vector that holds one takes the integer way.
#include <immintrin.h>

#include <halftone/backends/cpu/simd/local.h>
#include <halftone/core/short_floats.h>

namespace halftone::simd::HALFTONE_ISA {

static void widen(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = __builtin_bit_cast(float, uint32_t(x[i]) << 16);
}

static void narrow_integer(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = BFloat16::round(x[i]);
}

static void narrow(const float* x, uint16_t* y, int64_t n) {
  constexpr int subnormal_class = 0x20;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    if (_mm512_fpclass_ps_mask(v, subnormal_class)) {
      narrow_integer(x + i, y + i, 16);
      continue;
    }
    const __m256bh rounded = _mm512_cvtneps_pbh(v);
    __builtin_memcpy(y + i, &rounded, sizeof rounded);
  }
  narrow_integer(x + i, y + i, n - i);
}

void fill_bf16(Kernels& table) { table.widen_bf16 = widen, table.narrow_bf16 = narrow; }

}  // namespace halftone::simd::HALFTONE_ISA
