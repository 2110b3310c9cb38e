// Task 4: two ways to store what a bf16 weight loses. Write the functions, then run
// scripts/exercise.sh 4
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>

#include "given.h"
#include "numbers.h"  // numbers::bf16_bits(float), numbers::from_bf16(bits)

// A bf16 weight near 1 has the spacing 2^-7 or 2^-8. An update of 1e-4 rounds to nothing. Both
// forms below store 16 more bits for each weight, which the next update adds again.

/// Splits an f32 weight. The model computes with `high`, so it is the bf16 that is nearest to w; a
/// halfway case goes away from zero. `low` is the difference of the bits, with its sign:
///
///   bits_of(w) == (uint32_t(high) << 16) + low       modulo 2^32, low as a signed number
///
/// `low` is negative if `high` was rounded away from zero. It fits an int16_t only if a halfway
/// case goes away from zero: its low is -32768.
///
/// Examples:
///
///   w                bits         high     low
///   1                0x3f800000   0x3f80        0
///   1.001            0x3f8020c5   0x3f80     8389
///   1.007            0x3f80e560   0x3f81    -6816
///   1 + 2^-8         0x3f808000   0x3f81   -32768   halfway
///
/// w is finite. For a w beyond the largest bf16, `high` is infinity, and join() still restores w.
inline Split split(float w) { throw std::logic_error("split is not written yet"); }

/// Returns w from its halves: join(split(w)) has the bits of w, for every finite w and for -0.
inline float join(Split s) { throw std::logic_error("join is not written yet"); }

/// Adds an update to a split weight. The weight afterwards has the bits that f32 arithmetic gives:
/// join(s) becomes join(s) + update.
inline void split_add(Split& s, float update) {
  throw std::logic_error("split_add is not written yet");
}

/// Adds an update to a bf16 weight with Kahan's compensation, which is a bf16. `weight` and
/// `compensation` are bits. With f32 arithmetic:
///
///   sum          = (weight + compensation) + update
///   weight       = sum rounded to bf16 (nearest even)
///   compensation = sum - weight, rounded to bf16      with the new weight
///
/// All sums are finite.
///
/// weight + compensation has 16 significant bits at least: more than bf16's 8, fewer than f32's 24.
///
/// Example: weight 1 (0x3f80), compensation 0, update 0.001. The sum is 1.001, the weight stays 1,
/// and the compensation becomes 0.00099945 (0x3a83).
inline void kahan_add(uint16_t& weight, uint16_t& compensation, float update) {
  throw std::logic_error("kahan_add is not written yet");
}
