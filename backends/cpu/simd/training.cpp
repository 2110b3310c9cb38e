// Optimizer updates, one pass over everything they read and write, and the dropout mask.
#include <halftone/backends/cpu/simd/local.h>
#include <halftone/core/random.h>

namespace halftone::simd::HALFTONE_ISA {

// Kingma & Ba 2015; decoupled weight decay: Loshchilov & Hutter 2019.
static void adam(const AdamNumbers& u, const float* gradient, float* parameter, float* m, float* v,
                 int64_t n) {
  const float step = u.lr * u.inverse_correction1,
              decay = u.decoupled ? 1.0f - u.lr * u.weight_decay : 1.0f;
  const float l2 = u.decoupled ? 0.0f : u.weight_decay;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] + l2 * parameter[i];
    m[i] += u.rest1 * (g - m[i]);
    v[i] = u.beta2 * v[i] + u.rest2 * g * g;
    const float denominator = math::sqrt(v[i]) * u.inverse_root_correction2 + u.eps;
    parameter[i] = parameter[i] * decay - step * m[i] / denominator;
  }
}

static void sgd(const SgdNumbers& u, const float* gradient, float* parameter, float* momentum,
                int64_t n) {
  if (!momentum) {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i)
      parameter[i] -= u.lr * (gradient[i] + u.weight_decay * parameter[i]);
    return;
  }
  const float keep = u.first_step ? 0.0f : u.momentum,
              take = u.first_step ? 1.0f : 1.0f - u.dampening;
  const float ahead = u.nesterov ? u.momentum : 1.0f, own = u.nesterov ? 1.0f : 0.0f;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] + u.weight_decay * parameter[i];
    momentum[i] = (u.first_step ? 0.0f : keep * momentum[i]) + take * g;
    parameter[i] -= u.lr * (own * g + ahead * momentum[i]);
  }
}

/// The words of `lanes` neighbouring counters, word k of counter c at words[4 c + k]: Philox::words,
/// all counters a round at a time, so that rounds are vector code.
static void random_words(uint64_t seed, uint64_t counter, uint32_t (&words)[4 * lanes]) {
  uint32_t c0[lanes], c1[lanes], c2[lanes]{}, c3[lanes]{};
  for (int i = 0; i < lanes; ++i)
    c0[i] = uint32_t(counter + uint64_t(i)), c1[i] = uint32_t((counter + uint64_t(i)) >> 32);
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < lanes; ++i) {
      const uint64_t p0 = uint64_t(Philox::multiplier0) * c0[i];
      const uint64_t p1 = uint64_t(Philox::multiplier1) * c2[i];
      c0[i] = uint32_t(p1 >> 32) ^ c1[i] ^ k0, c2[i] = uint32_t(p0 >> 32) ^ c3[i] ^ k1;
      c1[i] = uint32_t(p1), c3[i] = uint32_t(p0);
    }
    k0 += Philox::weyl0, k1 += Philox::weyl1;
  }
  for (int i = 0; i < lanes; ++i)
    words[4 * i] = c0[i], words[4 * i + 1] = c1[i], words[4 * i + 2] = c2[i],
    words[4 * i + 3] = c3[i];
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

void fill_training(Kernels& table) { table.adam = adam, table.sgd = sgd, table.dropout = dropout; }

}  // namespace halftone::simd::HALFTONE_ISA
