// wrong: A number beyond the largest becomes the largest, which hides the overflow.
// caught by: the examples of task.h
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

inline uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return uint16_t(bits >> 16 | 0x40);
  const uint16_t rounded = uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  return std::isfinite(x) && (rounded & 0x7fff) == 0x7f80 ? uint16_t(rounded - 1) : rounded;
}
