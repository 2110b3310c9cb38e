// Half a unit is added before the cut; the low half is a signed number.
#pragma once

#include <bit>
#include <cstdint>

#include "given.h"
#include "numbers.h"

inline Split split(float w) {
  const uint32_t bits = std::bit_cast<uint32_t>(w);
  return {uint16_t((bits + 0x8000) >> 16), int16_t(bits & 0xffff)};
}

inline float join(Split s) {
  return std::bit_cast<float>((uint32_t(s.high) << 16) + uint32_t(int32_t(s.low)));
}

inline void split_add(Split& s, float update) { s = split(join(s) + update); }

inline void kahan_add(uint16_t& weight, uint16_t& compensation, float update) {
  const float sum = (numbers::from_bf16(weight) + numbers::from_bf16(compensation)) + update;
  weight = numbers::bf16_bits(sum);
  compensation = numbers::bf16_bits(sum - numbers::from_bf16(weight));
}
