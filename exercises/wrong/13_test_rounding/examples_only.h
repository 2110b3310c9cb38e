// wrong: The examples of task 1 and nothing else.
// caught by: mutants are rejected
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "given.h"
#include "numbers.h"

inline bool accepts(Rounding round) {
  return round(1.0f) == 0x3f80 && round(1.00390625f) == 0x3f80 && round(1.01171875f) == 0x3f82 &&
         round(3.4e38f) == 0x7f80;
}
