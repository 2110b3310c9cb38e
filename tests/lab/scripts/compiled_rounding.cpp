// The formula of core/formats/number_format.h alone, compiled by compiled_rounding.cmake with flags
// that the library never uses. Prints whether its hash is the usual one, and for how many of 1,000
// numbers Veltkamp's splitting, the same rounding by sums of floats, is right.
#include <cstdio>

#include <halftone/lab/experiments/experiments.h>

namespace {
/// Rounds x to 8 significand bits, with sums of floats.
float split(float x) {
  const float large = x * 65537.0f;
  return large - (large - x);
}
}  // namespace

int main() {
  namespace ht = halftone;
  const uint64_t hash = ht::lab::rounding_hash(
      [](const ht::NumberFormat& format, float x, ht::Rounding rounding, uint32_t random) {
        return ht::round_to(format, x, rounding, random);
      });
  int right = 0;
  ht::lab::AnyFloats floats;
  for (int i = 0; i < 1000; ++i) {
    const float x = 1.0f + float(floats.next_bits() >> 8) / 16777216.0f;
    right += split(x) == ht::round_to(ht::formats::bf16, x);
  }
  std::printf("formula %s %016llx; splitting right %d of 1000\n",
              hash == ht::lab::rounding_hash_everywhere ? "equal" : "DIFFERS",
              static_cast<unsigned long long>(hash), right);
  return hash == ht::lab::rounding_hash_everywhere ? 0 : 1;
}
