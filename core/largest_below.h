// The end of a half-open range in a short format: uniform numbers on [low, high) must not become
// `high` when they are rounded to y's dtype.
#pragma once

#include <bit>
#include <cstdint>

#include <halftone/core/dtype.h>

namespace halftone {

/// Returns the value before `high` on T's grid: the formats store sign and magnitude, so
/// neighboring numbers have neighboring bits.
template <class T> double largest_below(double high) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  const T nearest = convert<T>(high);
  if (convert<double>(nearest) < high) return convert<double>(nearest);
  constexpr Bits sign = Bits(Bits(1) << (8 * sizeof(T) - 1));
  const Bits bits = std::bit_cast<Bits>(nearest);
  const bool zero = (bits & Bits(~sign)) == 0, negative = (bits & sign) != 0;
  const Bits below = zero ? Bits(sign | 1) : Bits(negative ? bits + 1 : bits - 1);
  return convert<double>(std::bit_cast<T>(below));
}

}  // namespace halftone
