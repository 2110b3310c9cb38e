// Task 1: round an f32 to bf16. Write the function below, then run scripts/exercise.sh 1
#pragma once

#include <bit>
#include <cstdint>
#include <stdexcept>

/// Returns the 16 bits of the bf16 that is nearest to x; of two that are equally near, the one
/// whose last bit is 0 (nearest even).
///
/// A bf16 has the sign, the 8 exponent bits and the first 7 fraction bits of an f32: it is the
/// upper half of an f32 whose lower half is 0. The lower half says where x is between two
/// neighbors:
///
///   lower half < 0x8000: down      > 0x8000: up      == 0x8000: to the even neighbor
///
/// If the upper half of an f32 is increased by 1, it is the next bf16 away from zero. This also
/// holds from the largest subnormal number to the smallest normal one, and from the largest finite
/// number (0x7f7f) to infinity (0x7f80).
///
/// - Zero keeps its sign. Subnormal numbers (below 2^-126) are rounded like all others.
/// - A finite x at or beyond the middle between 0x7f7f and 0x7f80 becomes infinity; infinity stays.
/// - NaN stays NaN, with its sign. A NaN has an exponent of ones and a fraction that is not 0, and
///   the upper half of the fraction may be 0.
///
/// Examples:
///
///   x                         bits         result
///   1                         0x3f800000   0x3f80
///   1.00390625 = 1 + 2^-8     0x3f808000   0x3f80   halfway; the even neighbor is below
///   1.01171875 = 1 + 3*2^-8   0x3f818000   0x3f82   halfway; the even neighbor is above
///   3.4e38                    0x7f7fc99e   0x7f80   infinity
///
/// Use std::bit_cast<uint32_t>(x) for the bits. Time limit: 5 s for all tests.
inline uint16_t to_bf16(float x) { throw std::logic_error("to_bf16 is not written yet"); }
