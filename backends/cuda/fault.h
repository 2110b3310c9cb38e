// What a kernel does about input that only the device can see to be wrong, an index out of range:
// it neither reads nor writes outside, leaves a note here, and goes on. The host finds the note at
// its next wait and throws. The first note stays.
#pragma once

#include <cstdint>

#include <cuda_runtime.h>

namespace halftone::cuda {

enum class FaultKind : int { none, embedding_index, cross_entropy_target };

struct Fault {
  int kind = 0;  // a FaultKind, as an integer for atomicCAS
  long long value = 0, bound = 0;
};

/// index `value` is not in [0, bound).
__device__ inline void report(Fault* fault, FaultKind kind, int64_t value, int64_t bound) {
  if (atomicCAS(&fault->kind, 0, int(kind)) != 0) return;
  fault->value = value, fault->bound = bound;
}

/// Throws what the note says, as the CPU backend would have; nothing for FaultKind::none.
void raise(const Fault& fault);

}  // namespace halftone::cuda
