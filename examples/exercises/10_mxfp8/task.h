// Task 10: MXFP8, blocks of 32 elements with a scale that is a power of two. Write the functions,
// then run scripts/exercise.sh 10
#pragma once

#include <cmath>
#include <span>
#include <stdexcept>
#include <vector>

#include "given.h"
#include "numbers.h"  // float numbers::e4m3(double x): nearest even, saturates at 448

/// Returns the e8m0 code of a block's scale: the exponent e of the scale 2^e, plus 127.
///
///   a = the largest magnitude of the block;  E = floor(log2(a)), that is 2^E <= a < 2^(E+1)
///   e = E - 8, limited to -127 ... 127        8 is the exponent of 448, the largest e4m3
///
/// This is the rule of the OCP standard ("floor").
///
/// - Read E from the number (std::ilogb, std::frexp). std::log2 of a float rounds: for the largest
///   float below 2^20 it gives 20, and the scale is twice too large.
/// - A block of zeros has e = -127: code 0.
/// - A block with infinity or NaN has the scale 1: code 127. (The library does this. The standard
///   leaves it open.) Note that std::max(a, NaN) is a.
///
/// Examples:   largest   1    1.9   448   449   2^-130   0
///             code    119    119   127   127        0   0
inline uint8_t scale_code(std::span<const float> block) {
  throw std::logic_error("scale_code is not written yet");
}

/// Quantizes x: block i has the elements 32 i ... 32 i + 31. An element is x / 2^e, rounded to
/// e4m3. Quotients of a finite block are below 512, and may be above 448: those saturate. NaN stays
/// NaN; an infinite element becomes 448 with its sign. Throws a std::invalid_argument if the count
/// of x is not a multiple of 32.
inline Mxfp8 mx_quantize(std::span<const float> x) {
  throw std::logic_error("mx_quantize is not written yet");
}

/// Returns element * 2^e for every element. Codes are 0 ... 254. 2^-127 is a float (a subnormal
/// one), and so are the results; std::ldexp makes them.
inline std::vector<float> mx_dequantize(const Mxfp8& q) {
  throw std::logic_error("mx_dequantize is not written yet");
}
