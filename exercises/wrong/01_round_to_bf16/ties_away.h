// wrong: Halfway cases go away from zero.
// caught by: the examples of task.h
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

inline uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x8000) >> 16);
}
