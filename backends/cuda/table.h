// Sorts positions by their table row, for the gradient of an embedding: each row of the table then
// is one stretch, summed in the order of positions, independent of threads.
#pragma once

#include <cstdint>

#include <halftone/backends/cuda/context.h>

namespace halftone::cuda {

struct Pick {
  int64_t row, position;
};

/// Sorts picks[0 .. count) by row, 0 <= row <= most_row (all three as unsigned numbers, so that any
/// 64 bits can be sorted); equal rows keep their order. `spare` has the same size; returns the one
/// of the two that has the result. indexing.cu
Pick* sort_picks(const Context& context, Pick* picks, Pick* spare, int64_t count, int64_t most_row);

}  // namespace halftone::cuda
