// Random numbers for task 3.
#pragma once

#include <cstdint>

/// Returns 32 random bits that depend on the two arguments alone: the same arguments, the same
/// bits. Use a different `counter` for every number that you draw. (splitmix64, Steele et al. 2014.
/// The library uses Philox.)
inline uint32_t random_bits(uint64_t seed, uint64_t counter) {
  uint64_t z = seed * 0xd1342543de82ef95 + counter * 0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9, z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return uint32_t((z ^ z >> 31) >> 32);
}
