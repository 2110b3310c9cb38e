// wrong: The scale doubles without a ceiling, in the end to infinity.
// caught by: the scale has a ceiling
#pragma once

#include <algorithm>
#include <cmath>

#include "given.h"

inline ScalerState next(ScalerState now, bool found_inf, const ScalerRules& rules) {
  const auto moved = [&](double factor) {
    return float(std::clamp(now.scale * factor, double(rules.min_scale), double(INFINITY)));
  };
  if (found_inf) return {moved(rules.backoff_factor), 0};
  if (now.clean_steps + 1 < rules.growth_interval) return {now.scale, now.clean_steps + 1};
  return {moved(rules.growth_factor), 0};
}
