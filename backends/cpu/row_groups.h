// Splits rows for sums that must not depend on the number of threads.
#pragma once

#include <halftone/backends/cpu/staging.h>

namespace halftone::cpu {

/// Returns the rows of n elements per task: a number that depends only on sizes.
inline int64_t group_of(int64_t rows, int64_t n) {
  const int64_t by_size = std::max<int64_t>(1, reference::grain_length / std::max<int64_t>(n, 1));
  return std::max(by_size, (rows + 63) / 64);
}

}  // namespace halftone::cpu
