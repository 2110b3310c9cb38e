// wrong: The count is a static variable: two scalers in one program disturb each other.
// caught by: it grows after an interval only
#pragma once

#include <algorithm>

#include "given.h"

inline ScalerState next(ScalerState now, bool found_inf, const ScalerRules& rules) {
  const auto moved = [&](double factor) {
    return float(std::clamp(now.scale * factor, double(rules.min_scale), double(rules.max_scale)));
  };
  static int64_t clean = 0;
  now.clean_steps = clean;
  clean = found_inf || clean + 1 >= rules.growth_interval ? 0 : clean + 1;
  if (found_inf) return {moved(rules.backoff_factor), 0};
  if (now.clean_steps + 1 < rules.growth_interval) return {now.scale, now.clean_steps + 1};
  return {moved(rules.growth_factor), 0};
}
