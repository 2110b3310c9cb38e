// Random rounding and dropout. The numbers are Philox's, at the positions of core/random.h and
// core/update_rules.h; only the order of computation is vectorized.
#include <halftone/backends/cpu/simd/local.h>
#include <halftone/backends/cpu/simd/philox.h>
#include <halftone/core/dtype.h>

namespace halftone::simd::HALFTONE_ISA {

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
