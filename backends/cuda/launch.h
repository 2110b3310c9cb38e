// Starting kernels: the grid for a number of items, and one function that puts a kernel into the
// stream of a context. Kernels of this folder walk in grid strides, so a smaller grid is slower but
// computes every element. Exceptions: kernels for a single block are launched with one, and in
// surveys and norms of lists each block adds up a partial sum, so there the grid decides the order
// of the sum.
#pragma once

#include <algorithm>
#include <cstdint>

#include <halftone/backends/cuda/context.h>
#include <halftone/backends/cuda/library_calls.h>

namespace halftone::cuda {

inline constexpr unsigned block_threads = 256;

struct LaunchShape {
  dim3 blocks{}, threads{block_threads};
};

/// Returns the blocks for `items` if a block takes `per_block`: at most `most`, at least one.
constexpr unsigned blocks_for(int64_t items, int64_t per_block, int64_t most = 0x7fffffff) {
  return unsigned(std::clamp<int64_t>(items / per_block + (items % per_block != 0), 1, most));
}

/// Returns the grid for a loop over elements: enough threads to fill the device eight times.
inline LaunchShape shape_for(const Context& context, int64_t items, int64_t per_thread = 1) {
  return {blocks_for(items, block_threads * per_thread, int64_t(context.multiprocessors()) * 64)};
}
/// Returns one block of `threads` per row, for kernels that walk over rows in grid strides.
inline LaunchShape shape_for_rows(const Context& context, int64_t rows,
                                  unsigned threads = block_threads) {
  return {blocks_for(rows, 1, int64_t(context.multiprocessors()) * 128), threads};
}

/// Puts a kernel into the context's stream. Throws DeviceError if it cannot start.
template <class... P>
void launch(const Context& context, void (*kernel)(P...), const LaunchShape& shape,
            std::type_identity_t<P>... arguments) {
  context.activate();
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks, config.blockDim = shape.threads;
  config.stream = context.stream();
  check(cudaLaunchKernelEx(&config, kernel, arguments...), "starting a kernel");
  count_kernel();
}

/// The number of this thread in the grid, and the number of threads, for grid-stride loops.
__device__ inline int64_t global_thread() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t all_threads() { return int64_t(gridDim.x) * blockDim.x; }

/// Reports that index `value` is not in [0, bound).
__device__ inline void report(Fault* fault, FaultKind kind, int64_t value, int64_t bound) {
  if (atomicCAS(&fault->kind, 0, int(kind)) != 0) return;
  fault->value = value, fault->bound = bound;
}

}  // namespace halftone::cuda
