// Starting kernels: the grid for a number of items, and one function that puts a kernel into the
// stream of a context. Kernels of this folder walk in grid strides, so a smaller grid is slower but
// computes every element. Exceptions: kernels for a single block are launched with one, and in
// surveys and norms of lists each block adds up a partial sum, so there the grid decides the order
// of the sum.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include <halftone/backends/cuda/context.h>
#include <halftone/backends/cuda/libraries.h>
#include <halftone/core/backend.h>
#include <halftone/core/factory.h>
#include <halftone/core/language.h>
#include <halftone/core/memory.h>
#include <halftone/core/random.h>
#include <halftone/core/tensor.h>

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

// N tensors of one shape as few loops: dimensions of size 1 are dropped, the others ordered by
// stride and merged if all tensors allow it. Turn i of the loops is one element of each tensor;
// with fewer than 2^31 elements the divisions use 32 bits. Host and device share the arithmetic.

template <int N> struct Places { int64_t of[N]; };

template <int N> struct Layout {
  int depth = 0;
  int64_t turns = 1;
  int64_t counts[Dims::max_rank];    // innermost loop first
  int64_t steps[Dims::max_rank][N];  // elements

  Layout(const Shape& shape, const std::array<Strides, std::size_t(N)>& strides) {
    for (int d = shape.rank() - 1; d >= 0; --d) {
      turns *= shape[d];
      if (shape[d] == 1) continue;
      int64_t step[N];
      for (int t = 0; t < N; ++t) step[t] = strides[std::size_t(t)][d];
      insert(shape[d], step);
    }
    merge();
  }
  /// Takes tensors of the first one's shape; undefined ones get strides of 0.
  template <class... Rest>
  explicit Layout(const Tensor& first, const Rest&... rest)
      : Layout(first.shape(), {first.strides(), strides_of(rest, first.rank())...}) {}

  bool is_small() const { return turns <= std::numeric_limits<int32_t>::max(); }
  /// Returns whether there is one loop with step 1 (or no loop): all tensors dense in one order.
  bool is_dense() const {
    if (depth > 1) return false;
    for (int t = 0; t < N; ++t)
      if (depth == 1 && steps[0][t] != 1) return false;
    return true;
  }

  /// Returns each tensor's position at a turn. Index: uint32_t if is_small(), else uint64_t.
  template <class Index> HT_HD Places<N> at(Index turn) const {
    Places<N> places{};
    for (int d = 0; d < depth; ++d) {
      const Index count = Index(counts[d]), rest = turn / count, digit = turn - rest * count;
      for (int t = 0; t < N; ++t) places.of[t] += int64_t(digit) * steps[d][t];
      turn = rest;
    }
    return places;
  }
  HT_HD Places<N> at_turn(int64_t turn, bool small) const {
    return small ? at(uint32_t(turn)) : at(uint64_t(turn));
  }

 private:
  static Strides strides_of(const Tensor& x, int rank) {
    return x.defined() ? x.strides() : Dims::filled(rank, 0);
  }
  static bool before(const int64_t* a, const int64_t* b) {
    for (int t = 0; t < N; ++t)
      if (a[t] != b[t]) return a[t] < b[t];
    return false;
  }
  /// Keeps the loops ordered, with small steps inside; equal steps in the order of the dimensions.
  void insert(int64_t count, const int64_t* step) {
    int place = depth++;
    for (; place > 0 && before(step, steps[place - 1]); --place) {
      counts[place] = counts[place - 1];
      for (int t = 0; t < N; ++t) steps[place][t] = steps[place - 1][t];
    }
    counts[place] = count;
    for (int t = 0; t < N; ++t) steps[place][t] = step[t];
  }
  /// Merges two loops if, for every tensor, the outer step is the whole length of the inner loop.
  void merge() {
    int kept = 0;
    for (int d = 1; d < depth; ++d) {
      bool joins = true;
      for (int t = 0; t < N; ++t) joins = joins && steps[d][t] == steps[kept][t] * counts[kept];
      if (joins) {
        counts[kept] *= counts[d];
        continue;
      }
      counts[++kept] = counts[d];
      for (int t = 0; t < N; ++t) steps[kept][t] = steps[d][t];
    }
    if (depth > 0) depth = kept + 1;
  }
};

// Handles rare mixtures of dtypes with copies: the kernels of rows and columns are compiled for the
// mixtures that occur in training; other allowed mixtures go through tensors of a wider dtype.

/// Returns the dtype of statistics: f64 if a tensor is f64, otherwise f32.
template <class... T> DType statistics_of(const T&... tensors) {
  return ((tensors.defined() && tensors.dtype() == f64) || ...) ? f64 : f32;
}
inline bool is_or_undefined(const Tensor& x, DType dtype) {
  return !x.defined() || x.dtype() == dtype;
}

/// Returns x if it has that dtype or is undefined, otherwise a copy.
inline Tensor converted(Backend& backend, const Tensor& x, DType dtype) {
  if (is_or_undefined(x, dtype)) return x;
  const MemoryScope scope(MemoryUse::workspace);
  Tensor copy = empty_like(x, dtype);
  backend.copy(x, copy);
  return copy;
}

/// A result that is computed in another dtype: finish() converts it into its destination.
class ConvertedResult {
 public:
  ConvertedResult(Backend& backend, Tensor& wanted, DType dtype)
      : backend_(backend), wanted_(wanted), tensor_(wanted) {
    if (is_or_undefined(wanted, dtype)) return;
    const MemoryScope scope(MemoryUse::workspace);
    tensor_ = empty_like(wanted, dtype);
  }
  Tensor& tensor() { return tensor_; }
  void finish() {
    if (tensor_.defined() && tensor_.dtype() != wanted_.dtype()) backend_.copy(tensor_, wanted_);
  }

 private:
  Backend& backend_;
  Tensor& wanted_;
  Tensor tensor_;
};

/// Calls visitor.operator()<T, U>() if u is t, or if t is a short float and u is f32. Returns
/// whether it did.
template <class Visitor> bool visit_with_wide(DType t, DType u, Visitor&& visitor) {
  if (!is_floating(t) || size_of(t) == 1) return false;
  bool done = false;
  visit_floating(t, "cuda", [&]<class T>() {
    if (u == t) visitor.template operator()<T, T>(), done = true;
    else if constexpr (sizeof(T) == 2)
      if (u == f32) visitor.template operator()<T, float>(), done = true;
  });
  return done;
}

/// Calls visitor.operator()<U>() for f16 and bf16. Returns whether it did.
template <class Visitor> bool visit_short(DType u, Visitor&& visitor) {
  if (u == f16) visitor.template operator()<Float16>();
  else if (u == bf16) visitor.template operator()<BFloat16>();
  return u == f16 || u == bf16;
}

// Random keys for kernels: while a graph is captured, the offset has a second part in device
// memory, which each replay advances.

struct DeviceKey {
  uint64_t seed, offset;
  const uint64_t* shift;  // null: nothing to add

  /// Returns the counter of the first four numbers.
  __device__ uint64_t first() const { return shift ? offset + *shift : offset; }
};

/// Returns the key of a step that is counted by its replays: `stride` counters more with each.
__device__ inline RandomKey key_of_replay(RandomKey key, uint64_t stride, const uint64_t* shift) {
  return {key.seed, shift ? key.offset + shift[1] * stride : key.offset};
}

/// The same for a key that is a generator's if its stride is 0: that advances with its captured
/// step.
__device__ inline RandomKey key_in_replay(RandomKey key, uint64_t stride, const uint64_t* shift) {
  if (stride != 0) return key_of_replay(key, stride, shift);
  return {key.seed, shift ? key.offset + *shift : key.offset};
}

inline DeviceKey device_key(const Context& context, RandomKey key) {
  return {key.seed, key.offset, context.key_shift()};
}

}  // namespace halftone::cuda
