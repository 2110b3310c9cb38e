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
    m[i] += (1.0f - u.beta1) * (g - m[i]);
    v[i] = u.beta2 * v[i] + (1.0f - u.beta2) * g * g;
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

static void dropout(const float* x, uint64_t seed, uint64_t first, float p, float scale, float* y,
                    int64_t n) {
  int64_t i = 0;
  while (i < n) {
    const uint64_t at = first + uint64_t(i);
    const auto words = Philox::words(seed, at / 4);
    uint32_t word[4];
    __builtin_memcpy(word, &words, sizeof word);
    for (uint64_t k = at % 4; k < 4 && i < n; ++k, ++i)
      y[i] = Philox::uniform(word[k]) >= p ? x[i] * scale : 0.0f;
  }
}

void fill_training(Kernels& table) { table.adam = adam, table.sgd = sgd, table.dropout = dropout; }

}  // namespace halftone::simd::HALFTONE_ISA
