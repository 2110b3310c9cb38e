// How rows are cut where sums over them must not depend on the number of threads.
#pragma once

#include <halftone/backends/cpu/staging.h>

namespace halftone::cpu {

/// Rows of n elements per task: a number that depends on sizes only.
inline int64_t group_of(int64_t rows, int64_t n) {
  const int64_t by_size = std::max<int64_t>(1, reference::grain_length / std::max<int64_t>(n, 1));
  return std::max(by_size, (rows + 63) / 64);
}

}  // namespace halftone::cpu
