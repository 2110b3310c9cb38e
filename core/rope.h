// Rotary positions (Su et al. 2021): the angle of each row and pair of elements. Backends share it.
#pragma once

#include <cstdint>

#include <halftone/core/language.h>
#include <halftone/core/math.h>

namespace halftone {

/// Llama 3.1's scaling for contexts longer than the original one, in which the model was trained
/// first. A frequency with fewer than low_frequency_factor waves in the original context is divided
/// by `factor`, one with more than high_frequency_factor stays; between them the factor fades.
struct RopeScaling {
  double factor = 1, low_frequency_factor = 1, high_frequency_factor = 4;
  int64_t original_context = 8192;
};

struct RopeOptions {
  double theta = 10000;  // the longest wave has about 2 pi theta positions
  int64_t position = 0;  // that of the first row
  /// A pair is elements 2 i and 2 i + 1 (the paper, Llama's own files), not i and i + e / 2
  /// (Hugging Face's files).
  bool interleaved = false;
  RopeScaling scaling{};
};

/// Returns the angle (radians) by which a pair, of `pairs` in a row, turns with each position.
HT_HD double rope_frequency(const RopeOptions& options, int64_t pair, int64_t pairs) {
  const double frequency = math::pow(options.theta, -double(pair) / double(pairs));
  const RopeScaling& s = options.scaling;
  if (s.factor == 1) return frequency;
  constexpr double two_pi = 6.283185307179586;
  const double waves = double(s.original_context) * frequency / two_pi;
  const double share =
      (waves - s.low_frequency_factor) / (s.high_frequency_factor - s.low_frequency_factor);
  const double kept = share < 0 ? 0 : (share > 1 ? 1 : share);
  return frequency * (kept + (1 - kept) / s.factor);
}

/// Returns the angle of a pair in a row; frequency: the pair's rope_frequency(). In double: a float
/// has no digits left for the angle of a position beyond a few thousand.
HT_HD double rope_angle(const RopeOptions& options, int64_t row, double frequency) {
  return double(options.position + row) * frequency;
}

}  // namespace halftone
