// Sums, maxima and other reductions over the threads of a warp or a block. All threads must call
// them and all get the result; the order of the sum is fixed, so results repeat.
#pragma once

#include <cuda_runtime.h>

#include <halftone/core/language.h>

namespace halftone::cuda {

inline constexpr unsigned whole_warp = 0xffffffffu;
inline constexpr int warp_lanes = 32, most_warps = 32;

struct Sum {
  template <class A> HT_HD A operator()(A a, A b) const { return a + b; }
};
struct Max {  // NaN wins
  template <class A> HT_HD A operator()(A a, A b) const { return a != a || a > b ? a : b; }
};
struct Min {
  template <class A> HT_HD A operator()(A a, A b) const { return a != a || a < b ? a : b; }
};

/// Reduces over the 32 lanes of a full warp.
template <class A, class Combine> __device__ A warp_reduce(A value, Combine combine) {
  for (int bits = warp_lanes / 2; bits > 0; bits /= 2)
    value = combine(value, __shfl_xor_sync(whole_warp, value, bits));
  return value;
}

/// Reduces over a one-dimensional block of a multiple of 32 threads. `neutral` must not change a
/// result.
template <class A, class Combine> __device__ A block_reduce(A value, Combine combine, A neutral) {
  __shared__ A of_warps[most_warps];
  const int lane = int(threadIdx.x) % warp_lanes, warp = int(threadIdx.x) / warp_lanes;
  const int warps = int(blockDim.x) / warp_lanes;
  value = warp_reduce(value, combine);
  if (warps == 1) return value;
  if (lane == 0) of_warps[warp] = value;
  __syncthreads();
  value = warp_reduce(lane < warps ? of_warps[lane] : neutral, combine);
  __syncthreads();  // of_warps may be written again
  return value;
}

template <class A> __device__ A block_sum(A value) { return block_reduce(value, Sum{}, A(0)); }

}  // namespace halftone::cuda
