// Almost half a unit is added before the cut. The last bit that stays decides ties.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

inline uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
