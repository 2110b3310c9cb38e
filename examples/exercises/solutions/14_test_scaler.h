// Every row is a state, a flag, rules, and the state that must follow.
#pragma once

#include <cstdint>

#include "../06_loss_scaler/given.h"

using Scaler = ScalerState (*)(ScalerState now, bool found_inf, const ScalerRules& rules);

inline bool accepts(Scaler next) {
  struct Row {
    ScalerState now;
    bool found_inf;
    ScalerRules rules;
    ScalerState then;
  };
  const ScalerRules usual{}, other{4, 0.25f, 5, 8, 3000};
  const Row rows[] = {
      {{1024, 0}, false, usual, {1024, 1}},  // counts
      {{1024, 1997}, false, usual, {1024, 1998}},
      {{1024, 1998}, false, usual, {1024, 1999}},
      {{1024, 1999}, false, usual, {2048, 0}},        // grows
      {{1024, 2500}, false, usual, {2048, 0}},        // the interval was made shorter
      {{1024, 1500}, true, usual, {512, 0}},          // backs off
      {{1024, 1999}, true, usual, {512, 0}},          // although the interval is complete
      {{1, 3}, true, usual, {1, 0}},                  // floor
      {{0x1p24f, 1999}, false, usual, {0x1p24f, 0}},  // ceiling
      {{64, 4}, false, other, {256, 0}},              // other rules
      {{64, 3}, false, other, {64, 4}},
      {{64, 3}, true, other, {16, 0}},
      {{16, 0}, true, other, {8, 0}},
      {{1000, 4}, false, other, {3000, 0}},
  };
  for (const Row& row : rows) {
    const ScalerState got = next(row.now, row.found_inf, row.rules);
    if (got.scale != row.then.scale || got.clean_steps != row.then.clean_steps) return false;
  }
  return true;
}
