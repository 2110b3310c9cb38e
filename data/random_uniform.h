// Real numbers from a Generator, for transforms.
#pragma once

#include <halftone/core/random.h>

namespace halftone::data {

/// On [0, 1), with 53 random bits.
inline double uniform(Generator& random) { return double(random.next() >> 11) * 0x1p-53; }
/// On [low, high).
inline double uniform(Generator& random, double low, double high) {
  return low + (high - low) * uniform(random);
}

}  // namespace halftone::data
