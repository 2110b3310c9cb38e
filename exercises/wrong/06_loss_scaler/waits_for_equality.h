// wrong: The count is compared with ==: a shorter interval, set later, is never reached.
// caught by: it grows after an interval only
#pragma once

#include <algorithm>

#include "given.h"

inline ScalerState next(ScalerState now, bool found_inf, const ScalerRules& rules) {
  const auto moved = [&](double factor) {
    return float(std::clamp(now.scale * factor, double(rules.min_scale), double(rules.max_scale)));
  };
  if (found_inf) return {moved(rules.backoff_factor), 0};
  if (now.clean_steps + 1 != rules.growth_interval) return {now.scale, now.clean_steps + 1};
  return {moved(rules.growth_factor), 0};
}
