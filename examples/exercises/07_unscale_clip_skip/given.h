// The type of task 7: a training in the middle of a step.
#pragma once

#include <cstdint>
#include <vector>

struct Training {
  std::vector<float> weights{};
  std::vector<float> gradients{};  // of the loss times `scale`, until unscale() divides them
  float scale = 1024;              // a power of two
  bool unscaled = false;           // unscale() has divided the gradients of this step
  bool found_inf = false;          // a gradient of this step was infinite or NaN
  int64_t steps = 0;               // updates that were made
};
