// Numbers whose clip shows the order of the sum of squares.
#pragma once

#include <algorithm>
#include <cmath>

#include <halftone/core/clip.h>
#include <halftone/core/factory.h>

namespace halftone::test {

/// Returns 4096 numbers: one is 1, the square of the others is 2^-54, so 1 + 2^-54 is 1. Their sum
/// of squares is 1 + 255 * 2^-50 in lanes, of which one has the 1, and 1 + 2^-46 from the first
/// number to the last.
inline Tensor numbers_that_show_the_order() {
  Tensor x = empty({squares_together});
  std::fill_n(x.data<float>(), x.numel(), 0x1p-27f);
  x.data<float>()[256] = 1;
  return x;
}

/// Returns a clip whose bound for these numbers is 1 + 2^-23 with the sum in lanes, and 1 with a
/// sum that is smaller by more than 2^-45: the bound before its rounding to f32 is just above the
/// middle.
inline Clip clip_that_shows_the_order() {
  const double sum = 1 + 255 * 0x1p-50;
  return {.rms = (1 + 0x1p-24 + 0x1p-47) / std::sqrt(sum / double(squares_together))};
}

}  // namespace halftone::test
