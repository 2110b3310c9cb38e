// Task 2: round to any short format. Write the two functions, then run scripts/exercise.sh 2
#pragma once

#include <cmath>
#include <stdexcept>

#include "given.h"

/// Returns the format eXmY of IEEE 754: X exponent bits (2 to 8), Y fraction bits (1 to 23), the
/// top exponent reserved for infinity and NaN.
///
///   significand_bits = Y + 1                   the hidden bit is one of them
///   bias             = 2^(X-1) - 1
///   min_exponent     = 1 - bias                of the smallest normal number
///   max              = (2 - 2^-Y) 2^bias
///   infinity         = true
///
/// Examples: e5m10 is f16: 11 significand bits, min_exponent -14, max 65504. e8m23 is f32, and
/// round_to() then returns every f32 as it is.
inline Format ieee_format(int exponent_bits, int fraction_bits) {
  throw std::logic_error("ieee_format is not written yet");
}

/// Returns the number of `format` that is nearest to x; of two that are equally near, the one with
/// the even significand (an integer multiple of the spacing, whose last bit is 0).
///
/// - The spacing of the numbers around x is 2^(e - significand_bits + 1). Here e is the exponent of
///   x: 2^e <= |x| < 2^(e+1). std::ilogb and std::frexp read it exactly.
/// - Below 2^min_exponent the spacing is that at 2^min_exponent: the subnormal numbers. Their
///   smallest is one spacing. Half of it becomes zero (even), more than half becomes the smallest.
/// - Round first, compare with max afterwards: a number above max may round down to it. A result
///   beyond max becomes infinity, or, without format.infinity, max.
/// - Round once. Below 2^min_exponent, do not round to significand_bits first and to the larger
///   spacing afterwards: the first rounding can make a halfway case for the second.
/// - Zero keeps its sign, also the zero that a small negative number becomes. NaN stays NaN.
///   Infinity stays, or becomes max without format.infinity; signs stay.
///
/// Examples for e4m3 of the Open Compute Project: {4, -6, 448, false}; its largest number is 448,
/// its smallest 2^-9:
///
///   x          17     18     19     500   464   -2^-10   1.5 * 2^-10
///   result     16     18     20     448   448   -0       2^-9
///
/// The spacing above 16 is 2, so 17 and 19 are halfway; 464 is beyond 448 by half a spacing.
/// All products and powers of two here fit f64, so that f64 arithmetic does not round.
inline float round_to(const Format& format, float x) {
  throw std::logic_error("round_to is not written yet");
}
