// The SIMD tables that this CPU can run, for tests that compare each of them with scalar code.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <halftone/backends/cpu/staging.h>
#include <halftone/core/tensor.h>

namespace halftone::test {

/// Calls body(kernels) for each table, naming it in failures.
template <class Body> void each_level(const Body& body) {
  for (const simd::Kernels* kernels : supported_simd_kernels()) {
    INFO("instruction set ", std::string(kernels->name));
    body(*kernels);
  }
}

/// Lengths around the edges of vectors and blocks.
inline const std::vector<int64_t>& lengths() {
  static const std::vector<int64_t> all{0,  1,  2,  3,  7,   8,   15,   16,   17,   31,
                                        33, 63, 64, 65, 127, 129, 1000, 4096, 4099, 9001};
  return all;
}

/// A sequence that depends only on the seed.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  uint64_t word() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  float uniform(double low, double high) {
    return float(low + (high - low) * double(word() >> 11) * 0x1p-53);
  }
  std::vector<float> many(int64_t count, double low = -2, double high = 2) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(uniform(low, high));
    return values;
  }

 private:
  uint64_t state_;
};

/// The spacing of floats at |x|.
inline double float_spacing(double x) {
  const double magnitude = std::max(std::abs(x), 0x1p-126);
  return std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

/// The first i with |got[i] - wanted[i]| > bound(i), described; empty if there is none.
template <class Wanted, class Bound>
std::string first_beyond(const std::vector<float>& got, const Wanted& wanted, const Bound& bound) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double w = wanted(i), g = double(got[i]);
    if (g == w || (std::isnan(g) && std::isnan(w)) || std::abs(g - w) <= bound(i)) continue;
    return "element " + std::to_string(i) + " of " + std::to_string(got.size()) + ": " +
           std::to_string(g) + " instead of " + std::to_string(w) + ", bound " +
           std::to_string(bound(i));
  }
  return {};
}

// Floats as bits, for tests of kernels that must agree to the bit.

/// Bits, with NaN as one pattern.
inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float value : values)
    bits.push_back(value != value ? 0x7fc00000u : std::bit_cast<uint32_t>(value));
  return bits;
}
inline std::vector<uint32_t> bits_of(const Tensor& x) { return bits_of(x.to_vector<float>()); }

}  // namespace halftone::test
