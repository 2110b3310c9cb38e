// The order in which the blocks of a grid run.
#pragma once

#include <cstdint>
#include <numeric>

namespace halftone::emulation {

/// Returns the n-th block to run: a permutation whose step and start the seed chooses. 0:
/// ascending.
inline uint64_t block_in_order(uint64_t n, uint64_t blocks, uint64_t seed) {
  if (seed == 0) return n;
  uint64_t step = seed % blocks + blocks / 3 + 1;
  while (std::gcd(step, blocks) != 1) ++step;
  return (n % blocks * (step % blocks) + seed) % blocks;
}

}  // namespace halftone::emulation
