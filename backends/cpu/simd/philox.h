// Random words many at a time, for kernels that drop or round by chance. The numbers are Philox's,
// in the places that core/random.h gives them; only the order of the work is that of vectors.
#pragma once

#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

/// The words of `lanes` neighbouring counters, word k of counter c at words[4 c + k]: Philox::words
/// with the rounds innermost and unrolled, so that the counters are the lanes of vectors.
static inline void random_words(uint64_t seed, uint64_t counter, uint32_t (&words)[4 * lanes]) {
  uint32_t by_word[4][lanes];
#pragma GCC ivdep
  for (int i = 0; i < lanes; ++i) {
    uint32_t c0 = uint32_t(counter) + uint32_t(i), c2 = 0, c3 = 0;
    uint32_t c1 = uint32_t(counter >> 32) + (c0 < uint32_t(counter) ? 1u : 0u);
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t(Philox::multiplier0) * c0;
      const uint64_t p1 = uint64_t(Philox::multiplier1) * c2;
      c0 = uint32_t(p1 >> 32) ^ c1 ^ k0, c2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
      c1 = uint32_t(p1), c3 = uint32_t(p0);
      k0 += Philox::weyl0, k1 += Philox::weyl1;
    }
    by_word[0][i] = c0, by_word[1][i] = c1, by_word[2][i] = c2, by_word[3][i] = c3;
  }
  for (int i = 0; i < lanes; ++i)
    for (int k = 0; k < 4; ++k) words[4 * i + k] = by_word[k][i];
}

}  // namespace halftone::simd::HALFTONE_ISA
