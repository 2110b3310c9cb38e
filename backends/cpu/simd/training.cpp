// Optimizer updates, one pass over everything they read and write; the check of scaled gradients,
// and the halves of split weights.
#include <halftone/backends/cpu/simd/local.h>

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

template <bool Momentum, bool Centred>
static void rmsprop_as(const RmspropNumbers& u, const float* gradient, float* parameter,
                       float* square, float* buffer, float* average, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float g = gradient[i] + u.weight_decay * parameter[i];
    square[i] = u.alpha * square[i] + u.rest * g * g;
    float variance = square[i];
    if constexpr (Centred) {
      average[i] += u.rest * (g - average[i]);
      variance -= average[i] * average[i];
    }
    float step = g / (math::sqrt(variance) + u.eps);
    if constexpr (Momentum) step = buffer[i] = u.momentum * buffer[i] + step;
    parameter[i] -= u.lr * step;
  }
}

// Hinton 2012; centred: Graves 2013.
static void rmsprop(const RmspropNumbers& u, const float* gradient, float* parameter, float* square,
                    float* buffer, float* average, int64_t n) {
  const auto as = buffer ? (average ? rmsprop_as<true, true> : rmsprop_as<true, false>)
                         : (average ? rmsprop_as<false, true> : rmsprop_as<false, false>);
  as(u, gradient, parameter, square, buffer, average, n);
}

static bool unscale(const float* x, float factor, float* y, int64_t n) {
  constexpr uint32_t exponent = 0x7f800000u;  // all ones: infinite or NaN
  uint32_t found = 0;
  if (!y) {
    for (int64_t i = 0; i < n; ++i)
      found |= (__builtin_bit_cast(uint32_t, x[i]) & exponent) == exponent;
    return found == 0;
  }
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    found |= (__builtin_bit_cast(uint32_t, x[i]) & exponent) == exponent;
    y[i] = x[i] * factor;
  }
  return found == 0;
}

static void join_halves(bool rounded, const uint16_t* upper, const uint16_t* lower, float* y,
                        int64_t n) {
  // A lower half with its sign set says that the upper one was rounded up, by one.
  const uint32_t mask = rounded ? 1 : 0;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t low = lower[i];
    y[i] = __builtin_bit_cast(float, (upper[i] - (low >> 15 & mask)) << 16 | low);
  }
}

static void split_halves(bool rounded, const float* x, uint16_t* upper, uint16_t* lower,
                         int64_t n) {
  const uint32_t mask = rounded ? 1 : 0;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = __builtin_bit_cast(uint32_t, x[i]);
    upper[i] = uint16_t((bits >> 16) + (bits >> 15 & mask));
    lower[i] = uint16_t(bits);
  }
}

void fill_training(Kernels& table) {
  table.adam = adam, table.sgd = sgd, table.rmsprop = rmsprop;
  table.unscale = unscale;
  table.join_halves = join_halves, table.split_halves = split_halves;
}

}  // namespace halftone::simd::HALFTONE_ISA
