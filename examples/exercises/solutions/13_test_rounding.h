// Lower halves around the middle, for upper halves at every edge, with both signs.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "given.h"
#include "numbers.h"

inline bool accepts(Rounding round) {
  for (const uint32_t sign : {0u, 0x80000000u})
    for (uint32_t upper = 0; upper < 0x8000; ++upper)
      for (const uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
        const float x = std::bit_cast<float>(sign | upper << 16 | low);
        const uint16_t got = round(x);
        const bool nan = (got & 0x7fff) > 0x7f80 && got >> 15 == sign >> 31;
        if (std::isnan(x) ? !nan : got != numbers::bf16_bits(x)) return false;
      }
  return true;
}
