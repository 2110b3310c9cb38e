// Rotations of neighbors: a large number is spread over all of its group, so that one outlier does
// not take the grid from the others (Ashkboos et al. 2024; the NVFP4 training recipe, NVIDIA
// 2025).
#pragma once

#include <cstdint>

#include <halftone/core/host_device.h>

namespace halftone {

/// Rotates groups of `size` neighbors within a row, 2, 4, ... 64 (the last few of a row that fill
/// no group do not change). y = H x, or H^T x if `back`, with H the Sylvester matrix of ones and
/// minus ones over sqrt(size), after signs: neighbor j is negated if bit j of `signs` is set.
struct Rotation {
  int32_t size = 16;
  uint64_t signs = 0;
  bool back = false;
  static constexpr int32_t largest = 64;
};

namespace detail {
HT_HD void flip_signs(float* values, const Rotation& rotation) {
  for (int32_t j = 0; j < rotation.size; ++j)
    if ((rotation.signs >> j & 1u) != 0) values[j] = -values[j];
}
}  // namespace detail

/// Rotates one group in place. Sums come first and one product last, so that nothing can be fused:
/// the same bits everywhere. inverse_root: 1 / sqrt(size) in f32.
HT_HD void rotate_group(float* values, const Rotation& rotation, float inverse_root) {
  if (!rotation.back) detail::flip_signs(values, rotation);
  for (int32_t half = 1; half < rotation.size; half *= 2)
    for (int32_t i = 0; i < rotation.size; ++i)
      if ((i & half) == 0) {
        const float a = values[i], b = values[i + half];
        values[i] = a + b, values[i + half] = a - b;
      }
  for (int32_t j = 0; j < rotation.size; ++j) values[j] *= inverse_root;
  if (rotation.back) detail::flip_signs(values, rotation);
}

}  // namespace halftone
