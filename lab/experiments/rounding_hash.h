// Hashes the decisions of rounding: the formula of core/formats/number_format.h on a million floats gives
// the same hash with every compiler, flag and CPU. tests/lab/scripts/compiled_rounding.cmake
// compiles it with other flags.
#pragma once

#include <bit>
#include <cstdint>

#include <halftone/core/formats/number_format.h>

namespace halftone::lab {

constexpr uint64_t rounding_hash_everywhere = 0xa2a445215a3eecf5u;

/// Floats of all sizes: the bits come from a linear congruential generator.
class AnyFloats {
 public:
  float next() { return std::bit_cast<float>(next_bits()); }
  uint32_t next_bits() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return uint32_t(state_ >> 32);
  }

 private:
  uint64_t state_ = 18;
};

/// Returns the FNV-1a hash of round(format, x, rounding, random); `round` is round_to() or a
/// function to compare with it.
template <class Round> uint64_t rounding_hash(const Round& round) {
  constexpr NumberFormat all[]{formats::bf16, formats::f16,  formats::e5m2, formats::e4m3,
                               formats::e2m3, formats::e2m1, formats::int8};
  AnyFloats floats;
  uint64_t hash = 14695981039346656037u;
  for (int i = 0; i < 20'000; ++i)
    for (const NumberFormat& format : all)
      for (int r = 0; r < rounding_count; ++r) {
        const float x = floats.next();
        if ((std::bit_cast<uint32_t>(x) & 0x7fffffffu) > 0x7f800000u) continue;  // NaN stays NaN
        const float y = round(format, x, Rounding(r), floats.next_bits());
        hash = (hash ^ std::bit_cast<uint32_t>(y)) * 1099511628211u;
      }
  return hash;
}

}  // namespace halftone::lab
