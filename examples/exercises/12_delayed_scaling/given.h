// The type of task 12: the state of delayed scaling for one tensor.
#pragma once

#include <cstddef>
#include <vector>

struct DelayedScaling {
  std::size_t length = 16;       // how many steps the history remembers
  std::vector<float> history{};  // the largest magnitudes of the last steps, the oldest first
  float scale = 1;               // of the next step
};
