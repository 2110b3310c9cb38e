// The limits are applied to a product in f64, which cannot overflow.
#pragma once

#include <algorithm>

#include "given.h"

inline ScalerState next(ScalerState now, bool found_inf, const ScalerRules& rules) {
  const auto moved = [&](double factor) {
    return float(std::clamp(now.scale * factor, double(rules.min_scale), double(rules.max_scale)));
  };
  if (found_inf) return {moved(rules.backoff_factor), 0};
  if (now.clean_steps + 1 < rules.growth_interval) return {now.scale, now.clean_steps + 1};
  return {moved(rules.growth_factor), 0};
}
