// Vectors of magnitudes, and the rounding of finite numbers to nearest, a vector at a time.
#pragma once

#include <halftone/backends/cpu/simd/local.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone::simd::HALFTONE_ISA {

using Bits [[gnu::vector_size(vector_bytes)]] = int32_t;

[[gnu::always_inline]] static inline Bits larger(Bits a, Bits b) { return b > a ? b : a; }
[[gnu::always_inline]] static inline Bits magnitudes(Vector x) { return Bits(x) & 0x7fffffff; }

[[gnu::always_inline]] static inline uint32_t largest_of(const float* x, int64_t n) {
  Bits most{}, second{};  // every instruction set has signed comparisons
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    most = larger(most, magnitudes(load(x + i)));
    second = larger(second, magnitudes(load(x + i + lanes)));
  }
  most = larger(most, second);
  for (; i + lanes <= n; i += lanes) most = larger(most, magnitudes(load(x + i)));
  if (i < n) {
    Vector rest{};
    __builtin_memcpy(&rest, x + i, std::size_t(n - i) * sizeof(float));
    most = larger(most, magnitudes(rest));
  }
  return uint32_t(over_lanes(most, [](Bits a, Bits b) { return larger(a, b); }));
}

static float as_magnitude(uint32_t bits) {
  return __builtin_bit_cast(float, bits > 0x7f800000u ? nan_magnitude : bits);
}

/// round_by_addition() of finite numbers, a vector at a time: to nearest even, on a grid that is
/// not wide.
class NearestOnGrid {
 public:
  explicit NearestOnGrid(const Grid& grid)
      : most_(bits(2 * grid.max)),
        max_(bits(grid.max)),
        above_(bits(grid.above)),
        least_(grid.least_field << 23),
        drop_(grid.drop << 23),
        saturates_(grid.above == grid.max),
        serves_(grid.subnormal_drop == grid.drop && grid.above == grid.below) {}
  /// Return whether the grid can be rounded to here, and whether numbers beyond its largest number
  /// become that number.
  bool serves() const { return serves_; }
  bool saturates() const { return saturates_; }

  template <bool saturates> [[gnu::always_inline]] Vector operator()(Vector x) const {
    const Bits magnitude = smaller(magnitudes(x), Bits{} + (saturates ? max_ : most_));
    const Vector power = Vector(larger(magnitude & 0x7f800000, Bits{} + least_) + drop_);
    Bits value = Bits((Vector(magnitude) + power) - power);
    if (!saturates) value = value > max_ ? Bits{} + above_ : value;
    return Vector(value | (Bits(x) & int32_t(0x80000000u)));
  }

 private:
  static int32_t bits(float x) { return __builtin_bit_cast(int32_t, x); }
  static Bits smaller(Bits a, Bits b) { return a < b ? a : b; }
  int32_t most_, max_, above_, least_, drop_;
  bool saturates_, serves_;
};

}  // namespace halftone::simd::HALFTONE_ISA
