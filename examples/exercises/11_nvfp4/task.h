// Task 11: NVFP4, scales of two levels. Write the functions, then run scripts/exercise.sh 11
#pragma once

#include <cmath>
#include <span>
#include <stdexcept>
#include <vector>

#include "given.h"
#include "numbers.h"  // float numbers::e4m3(double x), numbers::e2m1: nearest even, saturating

/// Quantizes x; block i has the elements 16 i ... 16 i + 15. With f32 or f64 arithmetic:
///
///   tensor_scale s = A / (448 * 6)         A: the largest magnitude of the tensor
///   block scale  b = e4m3(a / 6 / s)       a: the largest magnitude of the block
///   element        = e2m1(x / (b * s))     with b as it was rounded
///
/// 6 is the largest e2m1 (0, 0.5, 1, 1.5, 2, 3, 4, 6), 448 the largest e4m3: the block with the
/// largest magnitude has the scale 448, and its largest element becomes 6. Block scales are 2^-9
/// to 448. Without the tensor's scale, gradients would need smaller ones.
///
/// - A tensor of zeros has s = 1, block scales 0 and elements 0.
/// - A block whose b rounds to 0 (a / 6 / s is at most 2^-10) has elements 0, not NaN: 0 / 0.
/// - Do not divide by the scale before it was rounded: nvfp4_dequantize() multiplies by the rounded
///   one, so that the rounding error of the scale would be in every result.
///
/// x is finite, and A is 0 or so large that s is a normal f32. Throws a std::invalid_argument if
/// the count of x is not a multiple of 16.
///
/// Example: the block 6, -3, 1, 0, ... (zeros) has A = a = 6, s = 6 / 2688 = 0.00223214, b = 448,
/// and the elements 6, -3, 1, 0, ...
inline Nvfp4 nvfp4_quantize(std::span<const float> x) {
  throw std::logic_error("nvfp4_quantize is not written yet");
}

/// Returns element * block scale * tensor scale for every element.
inline std::vector<float> nvfp4_dequantize(const Nvfp4& q) {
  throw std::logic_error("nvfp4_dequantize is not written yet");
}
