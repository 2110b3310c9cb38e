// The scale is used first and renewed afterwards.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "given.h"
#include "numbers.h"

inline float scale_for(float amax) {
  if (amax == 0 || !std::isfinite(amax)) return 1;
  return std::min(57344 / amax, std::numeric_limits<float>::max());
}

inline std::vector<float> quantize_step(DelayedScaling& state, std::span<const float> gradients) {
  std::vector<float> results;
  float amax = 0;
  bool finite = true;
  for (const float x : gradients) {
    const float scaled = std::clamp(x * state.scale, -57344.0f, 57344.0f);
    results.push_back(std::isfinite(x) ? numbers::e5m2(scaled) / state.scale : x);
    amax = std::max(amax, std::fabs(x));
    finite = finite && std::isfinite(x);
  }
  if (finite) state.history.push_back(amax);
  if (state.history.size() > state.length) state.history.erase(state.history.begin());
  float largest = 0;
  for (const float a : state.history) largest = std::max(largest, a);
  if (largest > 0) state.scale = scale_for(largest);
  return results;
}

inline bool becomes_zero(float x, float scale) { return std::fabs(x * scale) <= 0x1p-17f; }

inline int64_t lost_in_first_step(std::span<const float> gradients) {
  return std::count_if(gradients.begin(), gradients.end(),
                       [](float x) { return x != 0 && becomes_zero(x, 1); });
}
