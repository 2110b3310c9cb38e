// wrong: NaN is rounded like a number: 0x7fffffff becomes -0.
// caught by: NaN stays NaN
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

inline uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
