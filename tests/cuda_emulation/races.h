// Included first in the build that looks for races in kernels: a switch to another thread does not
// interrupt an atomic operation.
#pragma once

#define atomicAdd plain_atomicAdd
#define atomicMax plain_atomicMax
#define atomicCAS plain_atomicCAS
#define atomicExch plain_atomicExch
#include <cuda_runtime.h>
#undef atomicAdd
#undef atomicMax
#undef atomicCAS
#undef atomicExch

namespace halftone::emulation {
/// While an object lives, no other thread runs.
struct Undivided {
  Undivided();
  ~Undivided();
};
}  // namespace halftone::emulation

template <class T> T atomicAdd(T* at, std::type_identity_t<T> value) {
  const halftone::emulation::Undivided undivided;
  return plain_atomicAdd(at, value);
}
template <class T> T atomicMax(T* at, std::type_identity_t<T> value) {
  const halftone::emulation::Undivided undivided;
  return plain_atomicMax(at, value);
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  const halftone::emulation::Undivided undivided;
  return plain_atomicCAS(at, expected, value);
}
template <class T> T atomicExch(T* at, std::type_identity_t<T> value) {
  const halftone::emulation::Undivided undivided;
  return plain_atomicExch(at, value);
}
