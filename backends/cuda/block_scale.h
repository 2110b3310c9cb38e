// The scale of a block that one warp quantizes, if it depends on elements or random numbers: the
// sums of core/formats/block_scale.h in their order, by all lanes of the warp.
#pragma once

#include <halftone/backends/cuda/block.h>
#include <halftone/core/formats/block_scale.h>

namespace halftone::cuda {

/// Returns the sum over a block of term(row, column): block_total(). Lanes compute terms, and each
/// of them adds up the same row; lane i has the sum of rows i, i + 16, ...
template <class Term>
__device__ float warp_block_total(ScaleError error, int64_t rows, int64_t columns,
                                  const Term& term) {
  const int lane = int(threadIdx.x) % warp_lanes;
  float own = 0;
  for (int64_t i = 0; i < rows; ++i) {
    float of_row = 0;
    for (int64_t begin = 0; begin < columns; begin += warp_lanes) {
      const float mine = begin + lane < columns ? term(i, begin + lane) : 0.0f;
      const int count = columns - begin < warp_lanes ? int(columns - begin) : warp_lanes;
      for (int j = 0; j < count; ++j)
        of_row = combined(error, of_row, __shfl_sync(whole_warp, mine, j));
    }
    if (lane == int(i % BlockSum::ways)) own = combined(error, own, of_row);
  }
  for (int half = BlockSum::ways / 2; half > 0; half /= 2)
    own = combined(error, own, __shfl_xor_sync(whole_warp, own, half));
  return __shfl_sync(whole_warp, own, 0);
}

/// at(row, column): an element of the block; first: the number of its first one.
template <class At>
__device__ Scale warp_block_scale(const QuantizeNumbers& n, float amax, float amax_tensor,
                                  RandomKey key, uint64_t first, int64_t rows, int64_t columns,
                                  const At& at) {
  return block_scale(n, amax, level_of(n, amax_tensor), scale_word(key, first),
                     [&](ScaleError error, const auto& term) {
                       return warp_block_total(error, rows, columns, [&](int64_t i, int64_t j) {
                         return term(at(i, j));
                       });
                     });
}

}  // namespace halftone::cuda
