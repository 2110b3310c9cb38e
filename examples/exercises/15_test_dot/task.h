// Task 15: write the test of a dot product that kills its mutants. The grader calls accepts() with
// correct implementations and with mutants. Run scripts/exercise.sh 15
#pragma once

#include <cmath>
#include <span>
#include <stdexcept>
#include <vector>

#include "numbers.h"  // float numbers::bf16(double x): x rounded to bf16

/// A dot product of n numbers that are bf16, stored as f32: the sum of a[i] * b[i]. a and b have
/// the same length n.
using Dot = float (*)(std::span<const float> a, std::span<const float> b);

/// Returns whether `dot` is a correct dot product with a sum in f32:
///
/// - A product of two bf16 numbers is exact in f32. Sums are f32 or better, in any order. The
///   result is not rounded to bf16. n is 0 to 100000; the sum of no products is 0.
/// - The order is free, so correct results differ. Let s be the exact sum (compute it in f64), and
///   m the sum of |a[i] * b[i]|. Every correct result is within n * 2^-24 * m of s. It need not be
///   close to s relative to s: if terms cancel, s may be 0.
/// - If a product is NaN, the result is NaN.
/// - A product that is not 0 or NaN has a magnitude of 1e-30 to 1e36. Keep m below 1e38: above it
///   an f32 sum can overflow in one order and not in another.
///
/// Choose inputs, and a tolerance that accepts every correct result and nothing worse. There are
/// fourteen mutants. Think of what a kernel does: blocks, vectors of 8 with a rest, tiles of 256,
/// accumulators in short formats. Which lengths and which signs make each mistake visible?
///
/// Example of a test that accepts too much: three products whose sum is exact in bf16.
inline bool accepts(Dot dot) { throw std::logic_error("accepts is not written yet"); }
