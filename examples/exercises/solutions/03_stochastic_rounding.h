// The sum of r and the random number carries into the upper half with the probability r / 65536.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "given.h"

inline uint16_t stochastic_bf16(float x, uint16_t random) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (!std::isfinite(x)) return uint16_t(bits >> 16 | (std::isnan(x) ? 0x40 : 0));
  return uint16_t((bits + random) >> 16);
}

inline void sgd_step(std::vector<uint16_t>& weights, const std::vector<float>& gradients, float lr,
                     uint64_t seed, uint64_t step) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float w = std::bit_cast<float>(uint32_t(weights[i]) << 16);
    const uint32_t random = random_bits(seed, step * weights.size() + i);
    weights[i] = stochastic_bf16(w - lr * gradients[i], uint16_t(random >> 16));
  }
}
