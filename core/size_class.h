// The size classes of blocks in allocators: four to each power of two, so that at most a quarter of
// a block is rounding.
#pragma once

#include <bit>
#include <cstddef>

namespace halftone {

struct SizeClass {
  std::size_t index, bytes;
};

/// Returns the smallest class that holds `bytes`; all are multiples of `unit`, a power of two.
constexpr SizeClass size_class(std::size_t bytes, std::size_t unit) {
  const std::size_t units = bytes == 0 ? 1 : (bytes + unit - 1) / unit;
  if (units <= 4) return {units - 1, units * unit};
  const auto log = std::size_t(std::bit_width(units - 1) - 1);  // 2^log < units <= 2^(log+1)
  const std::size_t quarter = std::size_t(1) << (log - 2);
  const std::size_t steps = (units + quarter - 1) / quarter;  // 5 to 8
  return {4 * (log - 2) + 4 + (steps - 5), steps * quarter * unit};
}

}  // namespace halftone
