// wrong: One overflow and one clean step.
// caught by: mutants are rejected
#pragma once

#include <cstdint>

#include "../06_loss_scaler/given.h"

using Scaler = ScalerState (*)(ScalerState now, bool found_inf, const ScalerRules& rules);

inline bool accepts(Scaler next) {
  return next({1024, 0}, true, {}).scale == 512 && next({1024, 0}, false, {}).clean_steps == 1;
}
