// Counter-based random numbers: Philox 4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
// easy as 1, 2, 3"). The i-th number of a call is a pure function of (seed, offset, i), so results
// do not depend on the number of threads, nor on the device. A Generator hands out disjoint ranges
// of counters, one per call.
#pragma once

#include <array>
#include <cstdint>

#include <halftone/core/language.h>

namespace halftone {

struct Philox {
  static constexpr uint32_t multiplier0 = 0xD2511F53u, multiplier1 = 0xCD9E8D57u;
  static constexpr uint32_t weyl0 = 0x9E3779B9u, weyl1 = 0xBB67AE85u;

  /// Returns four 32-bit random words for one counter under one key.
  HT_HD static std::array<uint32_t, 4> words(uint64_t seed, uint64_t counter) {
    uint32_t c0 = uint32_t(counter), c1 = uint32_t(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t(multiplier0) * c0, p1 = uint64_t(multiplier1) * c2;
      const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
      c1 = uint32_t(p1), c3 = uint32_t(p0), c0 = n0, c2 = n2;
      k0 += weyl0, k1 += weyl1;
    }
    return {c0, c1, c2, c3};
  }
  /// Returns a word as a float on [0, 1): its upper 24 bits, so that 1 is never reached.
  HT_HD static float uniform(uint32_t word) { return float(word >> 8) * 0x1p-24f; }
};

/// A range of counters: element i of a tensor uses word i % 4 of counter offset + i / 4.
struct RandomKey {
  uint64_t seed = 0, offset = 0;
};

/// A stream of keys. A copy repeats the stream from the same position.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0) : key_{seed, 0} {}
  /// Returns a key for `count` numbers that no later call of this generator gets.
  RandomKey reserve(uint64_t count) {
    const RandomKey key = key_;
    key_.offset += (count + 3) / 4;
    return key;
  }
  RandomKey state() const { return key_; }
  void set_state(RandomKey key) { key_ = key; }
  /// Returns one random 64-bit word.
  uint64_t next();
  /// Returns one integer on [0, bound) without modulo bias. Throws UsageError for a bound of 0.
  uint64_t below(uint64_t bound);

 private:
  RandomKey key_;
};

/// Returns the generator of this thread that rand(), dropout() and initializers draw from.
Generator& default_generator();
/// Restarts the default generator. The same seed gives the same numbers.
void manual_seed(uint64_t seed);

}  // namespace halftone
