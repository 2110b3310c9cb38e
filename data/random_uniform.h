// Real numbers and permutations from a Generator, for transforms and orders.
#pragma once

#include <cstddef>
#include <utility>

#include <halftone/core/random.h>

namespace halftone::data {

/// Returns a number on [0, 1), with 53 random bits.
inline double uniform(Generator& random) { return double(random.next() >> 11) * 0x1p-53; }
/// Returns a number on [low, high).
inline double uniform(Generator& random, double low, double high) {
  return low + (high - low) * uniform(random);
}

/// Shuffles; every order is equally likely (Fisher & Yates; Durstenfeld 1964).
template <class List> void shuffle(List& list, Generator& random) {
  for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[random.below(i)]);
}

}  // namespace halftone::data
