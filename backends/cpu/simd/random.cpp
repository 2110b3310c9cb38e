// What rounds or drops by chance. The numbers are Philox's, in the places that core/random.h and
// core/weight_form.h give them; only the order of the work is that of vectors.
#include <halftone/backends/cpu/simd/local.h>
#include <halftone/core/short_floats.h>

namespace halftone::simd::HALFTONE_ISA {

/// The words of `lanes` neighbouring counters, word k of counter c at words[4 c + k]: Philox::words
/// with the rounds innermost and unrolled, so that the counters are the lanes of vectors.
static void random_words(uint64_t seed, uint64_t counter, uint32_t (&words)[4 * lanes]) {
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

static void dropout(const float* x, uint64_t seed, uint64_t first, float p, float scale, float* y,
                    int64_t n) {
  uint32_t words[4 * lanes];
  for (int64_t i = 0; i < n;) {
    random_words(seed, (first + uint64_t(i)) / 4, words);
    const auto skipped = int64_t((first + uint64_t(i)) % 4);
    const int64_t count = n - i < 4 * lanes - skipped ? n - i : 4 * lanes - skipped;
#pragma GCC ivdep
    for (int64_t k = 0; k < count; ++k)
      y[i + k] = Philox::uniform(words[skipped + k]) >= p ? x[i + k] * scale : 0.0f;
    i += count;
  }
}

static void random_halves(RandomKey key, uint64_t first, uint16_t* y, int64_t n) {
  uint32_t words[4 * lanes];
  for (int64_t i = 0; i < n;) {
    random_words(key.seed, key.offset + (first + uint64_t(i)) / 8, words);
    const auto skipped = int64_t((first + uint64_t(i)) % 8);
    const int64_t count = n - i < 8 * lanes - skipped ? n - i : 8 * lanes - skipped;
    // the lower half of a word comes first
    __builtin_memcpy(y + i, reinterpret_cast<const char*>(words) + 2 * skipped,
                     std::size_t(2 * count));
    i += count;
  }
}

void fill_random(Kernels& table) { table.dropout = dropout, table.random_halves = random_halves; }

}  // namespace halftone::simd::HALFTONE_ISA
