// Computes many random words at a time, for kernels that drop or round randomly. The numbers are
// Philox's, at the positions of core/random.h; only the order of computation is vectorized.
#pragma once

#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

/// Words in the lower halves of 64-bit lanes, as the multiply instruction needs them; the upper
/// halves are ignored.
using WideWords [[gnu::vector_size(vector_bytes)]] = uint64_t;
inline constexpr int wide_lanes = vector_bytes / 8;

[[gnu::always_inline]] inline WideWords product_of_words(WideWords a, WideWords b) {
#if defined(__AVX512F__)
  // like _mm512_mul_epu32, for which compilers warn of an undefined input
  return WideWords(_mm512_maskz_mul_epu32(__mmask8(-1), __m512i(a), __m512i(b)));
#elif defined(__AVX2__)
  return WideWords(_mm256_mul_epu32(__m256i(a), __m256i(b)));
#elif defined(__SSE2__)
  return WideWords(_mm_mul_epu32(__m128i(a), __m128i(b)));
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

/// Computes the words of wide_lanes neighboring counters, word k of counter c at words[4 c + k],
/// with the rounds of Philox::words.
[[gnu::always_inline]] inline void wide_random_words(uint64_t seed, uint64_t counter,
                                                     uint32_t* words) {
  WideWords place;
  for (int i = 0; i < wide_lanes; ++i) place[i] = uint64_t(i);
  WideWords c0 = place + counter, c1 = c0 >> 32, c2{}, c3{};
  const WideWords zero{}, multiplier0 = zero + Philox::multiplier0,
                          multiplier1 = zero + Philox::multiplier1;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const WideWords p0 = product_of_words(c0, multiplier0), p1 = product_of_words(c2, multiplier1);
    c0 = (p1 >> 32) ^ c1 ^ uint64_t(k0), c2 = (p0 >> 32) ^ c3 ^ uint64_t(k1);
    c1 = p1, c3 = p0;
    k0 += Philox::weyl0, k1 += Philox::weyl1;
  }
  const WideWords first = (c0 & 0xffffffffu) | (c1 << 32), second = (c2 & 0xffffffffu) | (c3 << 32);
  uint64_t pairs[2][wide_lanes];
  __builtin_memcpy(pairs[0], &first, sizeof first);
  __builtin_memcpy(pairs[1], &second, sizeof second);
  for (int i = 0; i < wide_lanes; ++i) {
    __builtin_memcpy(words + 4 * i, &pairs[0][i], sizeof(uint64_t));
    __builtin_memcpy(words + 4 * i + 2, &pairs[1][i], sizeof(uint64_t));
  }
}

/// Computes the words of `lanes` neighboring counters.
static inline void random_words(uint64_t seed, uint64_t counter, uint32_t (&words)[4 * lanes]) {
  for (int i = 0; i < lanes; i += wide_lanes)
    wide_random_words(seed, counter + uint64_t(i), words + 4 * i);
}

}  // namespace halftone::simd::HALFTONE_ISA
