// What a kernel does about input that only the device can see to be wrong, an index out of range:
// it neither reads nor writes outside, leaves a note here, and goes on. The host finds the note at
// its next wait and throws. The first note stays.
#pragma once

namespace halftone::cuda {

enum class FaultKind : int { none, embedding_index, cross_entropy_target, gather_index };

struct Fault {
  int kind = 0;  // a FaultKind, as an integer for atomicCAS
  long long value = 0, bound = 0;
};

/// Throws what the note says, as the CPU backend would have; nothing for FaultKind::none.
void raise(const Fault& fault);

}  // namespace halftone::cuda
