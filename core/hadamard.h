// Rotations of neighbors: a large number is spread over all of its group, so that one outlier does
// not take the grid from the others (Ashkboos et al. 2024; the NVFP4 training recipe, NVIDIA
// 2025).
#pragma once

#include <cstdint>

#include <halftone/core/host_device.h>
#include <halftone/core/random.h>

namespace halftone {

/// Rotates groups of `size` neighbors within a row, 2, 4, ... 128 (the last few of a row that fill
/// no group do not change). y = H x, or H^T x if `back`, with H the Sylvester matrix of ones and
/// minus ones over sqrt(size), after signs: neighbor j is negated if bit j of `signs` is set;
/// neighbor 64 + j if bit j of signs * high_factor is.
struct Rotation {
  int32_t size = 16;
  uint64_t signs = 0;
  bool back = false;
  /// draws: the signs are bits of the key instead; key_stride as in QuantizeCall
  bool draws = false;
  RandomKey key{};
  uint64_t key_stride = 0;
  static constexpr int32_t largest = 128;
};

/// The signs of one rotation: bit j % 64 of half j / 64 belongs to neighbor j.
struct RotationSigns {
  static constexpr uint64_t high_factor = 0xd1342543de82ef95u, stream = 0x5369676e73000000u;
  uint64_t half[2];
};
/// `key`: the rotation's, as it is in this replay.
HT_HD RotationSigns signs_of(const Rotation& rotation, RandomKey key) {
  if (!rotation.draws) return {{rotation.signs, rotation.signs * RotationSigns::high_factor}};
  const auto words = Philox::words(key.seed ^ RotationSigns::stream, key.offset);
  return {{uint64_t(words[1]) << 32 | words[0], uint64_t(words[3]) << 32 | words[2]}};
}

namespace detail {
HT_HD void flip_signs(float* values, int32_t size, const RotationSigns& signs) {
  for (int32_t j = 0; j < size; ++j)
    if ((signs.half[j / 64] >> j % 64 & 1u) != 0) values[j] = -values[j];
}
}  // namespace detail

/// Rotates one group in place. Sums come first and one product last, so that nothing can be fused:
/// the same bits everywhere. inverse_root: 1 / sqrt(size) in f32.
HT_HD void rotate_group(float* values, const Rotation& rotation, const RotationSigns& signs,
                        float inverse_root) {
  if (!rotation.back) detail::flip_signs(values, rotation.size, signs);
  for (int32_t half = 1; half < rotation.size; half *= 2)
    for (int32_t i = 0; i < rotation.size; ++i)
      if ((i & half) == 0) {
        const float a = values[i], b = values[i + half];
        values[i] = a + b, values[i + half] = a - b;
      }
  for (int32_t j = 0; j < rotation.size; ++j) values[j] *= inverse_root;
  if (rotation.back) detail::flip_signs(values, rotation.size, signs);
}

}  // namespace halftone
