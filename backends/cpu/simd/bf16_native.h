// Rounds a vector to bf16 with AVX512-BF16. The instruction treats subnormal floats as zero, unlike
// our rounding: the rare vector with a subnormal uses integer arithmetic.
#pragma once

#include <halftone/backends/cpu/simd/intrinsics.h>
#include <halftone/backends/cpu/simd/local.h>
#include <halftone/core/dtype.h>

namespace halftone::simd::HALFTONE_ISA {

[[gnu::noinline]] static __m256i round_each(__m512 v) {
  float x[16];
  uint16_t y[16];
  __builtin_memcpy(x, &v, sizeof x);
  for (int i = 0; i < 16; ++i) y[i] = BFloat16::round(x[i]);
  __m256i rounded;
  __builtin_memcpy(&rounded, y, sizeof rounded);
  return rounded;
}

[[gnu::always_inline]] inline __m256i round_bf16(__m512 v) {
  constexpr int subnormal_class = 0x20;
  if (_mm512_fpclass_ps_mask(v, subnormal_class)) [[unlikely]]
    return round_each(v);
  const __m256bh rounded = _mm512_cvtneps_pbh(v);
  __m256i bits;
  __builtin_memcpy(&bits, &rounded, sizeof bits);
  return bits;
}

}  // namespace halftone::simd::HALFTONE_ISA
