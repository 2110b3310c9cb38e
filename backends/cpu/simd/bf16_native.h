// Rounds a vector to bf16 with AVX512-BF16. The instruction treats subnormal floats as zero, unlike
// our rounding: the rare vector with a subnormal uses integer arithmetic.
#pragma once

#include <halftone/backends/cpu/simd/local.h>
#include <halftone/backends/cpu/simd/panels.h>
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

// Stores the results of products of panels (panels.h) from registers: adds earlier sums and a bias,
// and writes floats or rounds to bf16.

/// Returns a mask of the first `count` lanes; none if it is negative, all if it is large.
template <class Mask> static Mask first_lanes(int64_t count) {
  constexpr int64_t all = sizeof(Mask) * 8;
  if (count >= all) return Mask(~Mask{0});
  return count <= 0 ? Mask{0} : Mask((uint64_t{1} << count) - 1);
}

/// Stores row i, columns from 16 half on, in the lanes of the mask.
[[gnu::always_inline]] inline void store_half(const panels::Target& to, int64_t i, int half,
                                              __mmask16 used, __m512 sum) {
  const int64_t at = i * to.stride + half * 16;
  if (to.accumulate) sum += _mm512_maskz_loadu_ps(used, static_cast<float*>(to.c) + at);
  if (to.bias) sum += _mm512_maskz_loadu_ps(used, to.bias + half * 16);
  if (to.bf16) _mm256_mask_storeu_epi16(static_cast<uint16_t*>(to.c) + at, used, round_bf16(sum));
  else _mm512_mask_storeu_ps(static_cast<float*>(to.c) + at, used, sum);
}

}  // namespace halftone::simd::HALFTONE_ISA
