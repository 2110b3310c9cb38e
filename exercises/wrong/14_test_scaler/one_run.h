// wrong: One run with the usual rules: other factors, and the ends of the range, are not reached.
// caught by: mutants are rejected
#pragma once

#include <cstdint>

#include "../06_loss_scaler/given.h"

using Scaler = ScalerState (*)(ScalerState now, bool found_inf, const ScalerRules& rules);

inline bool accepts(Scaler next) {
  ScalerState state{};
  for (int step = 1; step <= 4100; ++step) {
    state = next(state, step == 4050, {});
    const float expected = step < 2000   ? 65536
                           : step < 4000 ? 131072
                           : step < 4050 ? 262144
                                         : 131072;
    if (state.scale != expected) return false;
  }
  return state.clean_steps == 50;
}
