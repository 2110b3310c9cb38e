// Task 5: sums in bf16 and in f32, and the error to expect. Write the functions, then run
// scripts/exercise.sh 5
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "numbers.h"  // float numbers::bf16(double x): x rounded to bf16, nearest even

/// Returns the sum in bf16, term after term from the left: it starts at 0, and each addition is
/// made in f32 and rounded to bf16 at once. Terms are bf16 numbers. The sum of no terms is 0.
inline float sum_bf16(std::span<const float> terms) {
  throw std::logic_error("sum_bf16 is not written yet");
}

/// Returns the sum in f32, term after term from the left, rounded to bf16 once at the end.
inline float sum_f32(std::span<const float> terms) {
  throw std::logic_error("sum_f32 is not written yet");
}

/// Returns the pairwise sum in bf16: the sum of the first floor(n / 2) terms plus that of the
/// others, each made in the same way; that addition is made in f32 and rounded to bf16. One term is
/// its own sum. The sum of no terms is 0.
inline float sum_pairwise_bf16(std::span<const float> terms) {
  throw std::logic_error("sum_pairwise_bf16 is not written yet");
}

/// Predicts sum_bf16 of `count` terms that are all equal to `term`, a positive power of two,
/// without adding them: `count` is 0 to 10^15. The sum grows until adding a term changes nothing.
/// It never exceeds the largest bf16.
///
/// bf16 has 8 significant bits. Find the first sum S at which S + term rounds to S; S is a multiple
/// of term. (With pencil and paper: at which integer does S + 1 round to S? Mind the halfway case.)
inline float predicted_sum_bf16(float term, int64_t count) {
  throw std::logic_error("predicted_sum_bf16 is not written yet");
}

enum class Method { bf16, pairwise_bf16, f32 };

/// Returns the usual first-order bound of the relative error of the sum of n >= 1 positive terms:
///
///   (additions that a term passes through, at most) * (unit roundoff u of the sum)
///
/// u is half the spacing at 1: 2^-8 for bf16, 2^-24 for f32. A term passes through n - 1 additions
/// from the left, and through ceil(log2(n)) if they are pairwise. For Method::f32 add the one
/// rounding to bf16 at the end: u of bf16.
///
/// Examples, n = 1024:   bf16 1023 * 2^-8 = 4.0    pairwise 10 * 2^-8 = 0.039
///                       f32 1023 * 2^-24 + 2^-8 = 0.0040
inline double error_bound(Method method, int64_t n) {
  throw std::logic_error("error_bound is not written yet");
}
