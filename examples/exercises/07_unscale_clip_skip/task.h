// Task 7: the second half of a step under a loss scale. Write the functions, then run
// scripts/exercise.sh 7
//
//   backward          gradients of loss * scale            (the caller)
//   unscale(t)        to look at the gradients or clip them; may be left out
//   clip(t, 1.0)
//   step(t, lr)       the update, unless a gradient overflowed
//   update(t)         the next scale; the next step begins
#pragma once

#include <cmath>
#include <stdexcept>

#include "given.h"

/// Sets t.found_inf if a gradient is infinite (+ or -) or NaN. In any case divides every gradient
/// by t.scale, and sets t.unscaled. Throws a std::logic_error if t.unscaled is set already, and
/// then changes nothing. (Gradients that are divided twice are t.scale times too small, without a
/// message.) t.found_inf is false before: update() clears it.
inline void unscale(Training& t) { throw std::logic_error("unscale is not written yet"); }

/// Clips the gradients to the norm `max_norm` and returns their norm before, the square root of the
/// sum of squares. Throws a std::logic_error if t.unscaled is not set: the norm would be that of
/// scaled gradients, and everything would be clipped.
///
/// - If the norm is above max_norm, every gradient is multiplied by max_norm / norm, in f32 or f64.
///   Otherwise none changes. max_norm is positive.
/// - The sum is f64: the square of 1e20 is infinite in f32, and the square of 1e-25 is 0.
/// - If t.found_inf is set, no gradient changes, and the result is infinity.
inline double clip(Training& t, double max_norm) {
  throw std::logic_error("clip is not written yet");
}

/// Makes the update w -= lr * gradient in f32, counts it in t.steps, and returns true. If
/// t.found_inf is set it returns false: weights and t.steps stay as they were. (Adam's bias
/// correction uses the count; a step that was not made must not be in it.)
///
/// Calls unscale() first if that has not been done in this step. So a second step() before update()
/// (two optimizers) divides nothing. Does not change t.scale.
inline bool step(Training& t, float lr) { throw std::logic_error("step is not written yet"); }

/// Ends the step: halves t.scale if t.found_inf is set (without a limit: that was task 6), then
/// clears t.found_inf and t.unscaled. Leaves weights, gradients and t.steps.
inline void update(Training& t) { throw std::logic_error("update is not written yet"); }
