// The generator as a stream, and the default generator of each thread.
#include <halftone/core/random.h>

#include <halftone/core/error.h>

namespace halftone {

uint64_t Generator::next() {
  const RandomKey key = reserve(2);
  const auto words = Philox::words(key.seed, key.offset);
  return uint64_t(words[0]) << 32 | words[1];
}

uint64_t Generator::below(uint64_t bound) {
  if (bound == 0)
    fail<UsageError>("Generator.below", "no integer is below 0. Pass a bound of 1 or more.");
  // Lemire (2019): the upper half of a 64x64-bit product, rejecting the few values that would bias
  // it.
  const uint64_t threshold = (0 - bound) % bound;
  for (;;) {
    const auto product = static_cast<unsigned __int128>(next()) * bound;
    if (uint64_t(product) >= threshold) return uint64_t(product >> 64);
  }
}

Generator& default_generator() {
  thread_local Generator generator(0);
  return generator;
}

void manual_seed(uint64_t seed) { default_generator() = Generator(seed); }

}  // namespace halftone
