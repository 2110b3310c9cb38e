// Floats as bits, for tests of kernels that must agree to the bit.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone::test {

/// Bits, with NaN as one pattern.
inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values)
    bits.push_back(value != value ? 0x7fc00000u : std::bit_cast<uint32_t>(value));
  return bits;
}
inline std::vector<uint32_t> bits_of(const Tensor& x) { return bits_of(x.to_vector<float>()); }

}  // namespace halftone::test
