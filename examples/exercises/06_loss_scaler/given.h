// The types of task 6: the state of a loss scaler and its rules.
#pragma once

#include <cstdint>

struct ScalerState {
  float scale = 65536;
  int64_t clean_steps = 0;  // since the scale last changed
};

struct ScalerRules {
  float growth_factor = 2, backoff_factor = 0.5f;
  int64_t growth_interval = 2000;
  float min_scale = 1, max_scale = 0x1p24f;
};
