// The type of task 4: a weight in two halves.
#pragma once

#include <cstdint>

/// A weight of 32 bits. The model computes with `high`, a bf16; `low` is what `high` lacks.
struct Split {
  uint16_t high = 0;
  int16_t low = 0;
};
