// Task 12: delayed scaling of gradients in e5m2, and why the first step underflows. Write the
// functions, then run scripts/exercise.sh 12
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "given.h"
#include "numbers.h"  // float numbers::e5m2(double x): nearest even, infinite beyond 57344

/// Returns the scale that moves `amax`, the largest magnitude of a tensor, to the largest e5m2:
/// 57344 / amax in f32. Returns 1 if amax is 0 or not finite, and the largest finite float if the
/// quotient is infinite. This task multiplies by its scale, as TransformerEngine does; the scale of
/// docs/number_formats.md is its reciprocal, because a quantizer divides by it.
inline float scale_for(float amax) { throw std::logic_error("scale_for is not written yet"); }

/// Quantizes the gradients of one step and prepares the next step. The largest magnitude of a
/// tensor is known only when the kernel that makes the tensor has finished. That kernel needs a
/// scale earlier, so it uses one from earlier steps.
///
/// 1. With s = state.scale, as it was before the call, each result is e5m2(x * s) / s. The product
///    and the quotient are f32. A finite x saturates: if e5m2(x * s) is infinite, it is replaced by
///    57344 with its sign, so that the result is 57344 / s or -57344 / s. Infinite and NaN elements
///    stay.
/// 2. amax, the largest magnitude of the gradients, is appended to the history. If the history then
///    has more than state.length entries, the oldest one is removed. If a gradient is infinite or
///    NaN, nothing is appended: for an infinite entry scale_for() returns 1, and gradients would
///    underflow for `length` steps. `gradients` has at least one element.
/// 3. state.scale becomes scale_for(largest entry of the history). It stays as it was if the
///    history is empty or its largest entry is 0.
///
/// Example: from the initial state, gradients {2^-20, -2^-18}: step 1 has the scale 1, and both
/// results are 0 and -0. The next scale is 57344 * 2^18, and with it both numbers are exact in
/// step 2.
inline std::vector<float> quantize_step(DelayedScaling& state, std::span<const float> gradients) {
  throw std::logic_error("quantize_step is not written yet");
}

/// Predicts, by a comparison and without e5m2(), whether quantize_step() turns a finite x that is
/// not 0 into 0 (or -0) when state.scale is `scale`. The smallest e5m2 above 0 is 2^-16. Mind the
/// halfway case. The product is f32 as in quantize_step(), where it can round to the halfway case.
inline bool becomes_zero(float x, float scale) {
  throw std::logic_error("becomes_zero is not written yet");
}

/// Returns how many of the gradients that are not 0 a training loses in its first step, when no
/// history exists and the scale is 1.
inline int64_t lost_in_first_step(std::span<const float> gradients) {
  throw std::logic_error("lost_in_first_step is not written yet");
}
