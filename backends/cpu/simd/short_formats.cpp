// f16 and bf16 to floats and back. Widening is exact, and narrowing is correctly rounded,
// subnormals included.
#include <halftone/backends/cpu/simd/local.h>
#if defined(__AVX512BF16__)
#include <halftone/backends/cpu/simd/bf16_native.h>
#endif
#include <halftone/core/dtype.h>

namespace halftone::simd::HALFTONE_ISA {

// bf16 is the upper half of a float.
static void widen_bf16(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = __builtin_bit_cast(float, uint32_t(x[i]) << 16);
}

#if defined(__AVX2__) && !defined(__AVX512BF16__)
/// BFloat16::round() of eight floats, in the lower halves.
[[gnu::always_inline]] static inline __m256i rounded_bf16(const float* x) {
  const __m256 floats = _mm256_loadu_ps(x);
  const __m256i bits = (__m256i)floats, upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256 nan = _mm256_cmp_ps(floats, floats, _CMP_UNORD_Q);
  return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), quiet, (__m256i)nan);
}
#endif

static void narrow_bf16(const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
#if defined(__AVX2__) && !defined(__AVX512BF16__)
  for (; i + 16 <= n; i += 16) {
    const __m256i pairs = _mm256_packus_epi32(rounded_bf16(x + i), rounded_bf16(x + i + 8));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i), _mm256_permute4x64_epi64(pairs, 0xd8));
  }
#elif defined(__AVX512BF16__)
  for (; i + 16 <= n; i += 16) {
    const __m256i rounded = round_bf16(_mm512_loadu_ps(x + i));
    __builtin_memcpy(y + i, &rounded, sizeof rounded);
  }
#endif
  for (; i < n; ++i) y[i] = BFloat16::round(x[i]);
}

#if defined(__F16C__)

static void widen_f16(const uint16_t* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(y + i,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  for (; i < n; ++i) y[i] = _cvtsh_ss(x[i]);
}

static void narrow_f16(const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  for (; i < n; ++i) y[i] = _cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT);
}

#else

static void widen_f16(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = halftone::detail::widen_ieee_like<5, 10>(x[i]);
}
static void narrow_f16(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = halftone::detail::round_to_ieee_like<5, 10>(x[i]);
}

#endif

void fill_short_formats(Kernels& table) {
  table.widen_bf16 = widen_bf16, table.narrow_bf16 = narrow_bf16;
  table.widen_f16 = widen_f16, table.narrow_f16 = narrow_f16;
}

}  // namespace halftone::simd::HALFTONE_ISA
