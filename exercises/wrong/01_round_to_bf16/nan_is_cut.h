// wrong: The upper half of a NaN is taken as it is: 0x7f800001 becomes infinity.
// caught by: NaN stays NaN
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

inline uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return uint16_t(bits >> 16);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
