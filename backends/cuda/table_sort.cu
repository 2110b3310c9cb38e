// A stable radix sort of picks, eight bits of the row at a time. Blocks take tiles of neighbors and
// count the digits of their tile. All counts are summed up in the order (digit, tile), and each
// block writes its picks after those of earlier tiles. Inside a tile, the rank of a pick among
// equal digits comes from ballots and from counts per warp, so nothing depends on the order of
// threads.
#include <halftone/backends/cuda/table.h>

#include <bit>

#include <halftone/backends/cuda/block.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/core/factory.h>

namespace halftone::cuda {

namespace {

constexpr int digit_bits = 8, digits = 1 << digit_bits, turns_per_tile = 4;
constexpr int64_t tile_length = int64_t(block_threads) * turns_per_tile;
static_assert(digits == int(block_threads), "thread d looks after digit d");

__device__ int digit_of(const Pick& pick, int shift) {
  return int(pick.row >> shift & (digits - 1));
}

/// Computes counts[digit * tiles + tile].
__global__ void __launch_bounds__(block_threads)
    count_digits_kernel(const Pick* picks, int64_t count, int shift, int64_t tiles,
                        int64_t* counts) {
  __shared__ int of_digits[digits];
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    of_digits[threadIdx.x] = 0;
    __syncthreads();
    for (int turn = 0; turn < turns_per_tile; ++turn) {
      const int64_t i = tile * tile_length + turn * int64_t(block_threads) + threadIdx.x;
      if (i < count) atomicAdd(&of_digits[digit_of(picks[i], shift)], 1);  // integers: any order
    }
    __syncthreads();
    counts[threadIdx.x * tiles + tile] = of_digits[threadIdx.x];
    __syncthreads();  // of_digits may be written again
  }
}

/// Replaces each count by the sum of those before it; one block.
__global__ void __launch_bounds__(block_threads) sum_up_kernel(int64_t* counts, int64_t n) {
  constexpr int warps = int(block_threads) / warp_lanes;
  __shared__ int64_t of_warps[warps];
  const int thread = int(threadIdx.x), lane = thread % warp_lanes, warp = thread / warp_lanes;
  int64_t carried = 0;
  for (int64_t first = 0; first < n; first += block_threads) {
    const int64_t i = first + thread, own = i < n ? counts[i] : 0;
    int64_t sum = own;
    for (int by = 1; by < warp_lanes; by *= 2) {
      const int64_t before = __shfl_up_sync(whole_warp, sum, unsigned(by));
      if (lane >= by) sum += before;
    }
    if (lane == warp_lanes - 1) of_warps[warp] = sum;
    __syncthreads();
    int64_t before = carried;
    for (int w = 0; w < warps; ++w) {
      if (w < warp) before += of_warps[w];
      carried += of_warps[w];
    }
    if (i < n) counts[i] = before + sum - own;
    __syncthreads();  // of_warps may be written again
  }
}

/// Returns the lanes whose digit equals this lane's; all lanes of the warp must call it.
__device__ unsigned lanes_alike(int digit, bool exists) {
  unsigned alike = __ballot_sync(whole_warp, exists);
  for (int bit = 0; bit < digit_bits; ++bit) {
    const bool set = (digit >> bit & 1) != 0;
    const unsigned have = __ballot_sync(whole_warp, set);
    alike &= set ? have : ~have;
  }
  return alike;
}

__global__ void __launch_bounds__(block_threads)
    place_picks_kernel(const Pick* picks, int64_t count, int shift, int64_t tiles,
                       const int64_t* starts, Pick* sorted) {
  constexpr int warps = int(block_threads) / warp_lanes;
  __shared__ int64_t next[digits];  // position of the next pick of a digit
  __shared__ int of_warps[warps][digits];
  const int thread = int(threadIdx.x), lane = thread % warp_lanes, warp = thread / warp_lanes;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    next[thread] = starts[thread * tiles + tile];
    for (int turn = 0; turn < turns_per_tile; ++turn) {
      for (int w = 0; w < warps; ++w) of_warps[w][thread] = 0;
      __syncthreads();
      const int64_t i = tile * tile_length + turn * int64_t(block_threads) + thread;
      const bool exists = i < count;
      const Pick pick = exists ? picks[i] : Pick{0, 0};
      const int digit = digit_of(pick, shift);
      const unsigned alike = lanes_alike(digit, exists);
      const int rank = __popc(alike & ((1u << lane) - 1));
      if (exists && rank == 0) of_warps[warp][digit] = __popc(alike);
      __syncthreads();
      if (exists) {
        int64_t to = next[digit] + rank;
        for (int w = 0; w < warp; ++w) to += of_warps[w][digit];
        sorted[to] = pick;
      }
      __syncthreads();
      for (int w = 0; w < warps; ++w) next[thread] += of_warps[w][thread];
    }
    __syncthreads();  // next may be written again
  }
}

}  // namespace

Pick* sort_picks(const Context& context, Pick* picks, Pick* spare, int64_t count,
                 int64_t most_row) {
  const int64_t tiles = blocks_for(count, tile_length);
  const Tensor memory = scratch(context, {digits * tiles}, i64);
  int64_t* const counts = reinterpret_cast<int64_t*>(memory.raw_data());
  const LaunchShape shape{blocks_for(tiles, 1), block_threads};
  const int bits = std::bit_width(uint64_t(most_row));
  for (int shift = 0; shift < bits; shift += digit_bits) {
    launch(context, count_digits_kernel, shape, picks, count, shift, tiles, counts);
    launch(context, sum_up_kernel, {1, block_threads}, counts, digits * tiles);
    launch(context, place_picks_kernel, shape, picks, count, shift, tiles, counts, spare);
    std::swap(picks, spare);
  }
  return picks;
}

}  // namespace halftone::cuda
