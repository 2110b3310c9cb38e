// Random keys for kernels: while a graph is captured, the offset has a second part in device
// memory, which each replay advances.
#pragma once

#include <halftone/backends/cuda/context.h>
#include <halftone/core/random.h>

namespace halftone::cuda {

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
