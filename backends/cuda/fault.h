// Handles input that only the device can check, such as an index out of range: the kernel neither
// reads nor writes outside, writes a note here, and continues. The host finds the note at its next
// wait and throws. The first note stays.
#pragma once

namespace halftone::cuda {

enum class FaultKind : int { none, embedding_index, cross_entropy_target, gather_index };

struct Fault {
  int kind = 0;  // a FaultKind, as an integer for atomicCAS
  long long value = 0, bound = 0;
};

/// Throws the error in the note, like the CPU backend; does nothing for FaultKind::none.
void raise(const Fault& fault);

}  // namespace halftone::cuda
