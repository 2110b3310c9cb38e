// wrong: A thousand random floats: a halfway case is one of 65536, and -0 one of 2^32.
// caught by: mutants are rejected
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "given.h"
#include "numbers.h"

inline bool accepts(Rounding round) {
  uint32_t bits = 12345;
  for (int i = 0; i < 1000; ++i) {
    bits = bits * 1664525 + 1013904223;
    const float x = std::bit_cast<float>(bits);
    if (!std::isnan(x) && round(x) != numbers::bf16_bits(x)) return false;
  }
  return true;
}
