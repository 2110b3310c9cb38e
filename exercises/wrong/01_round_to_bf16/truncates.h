// wrong: The lower half is cut off.
// caught by: the examples of task.h
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

inline uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return uint16_t(bits >> 16 | (std::isnan(x) ? 0x40 : 0));
}
