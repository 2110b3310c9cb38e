// Task 6: a loss scaler as a pure function. Write it, then run scripts/exercise.sh 6
#pragma once

#include <stdexcept>

#include "given.h"

/// Returns the state after one step. `found_inf`: a gradient of the step was infinite or NaN.
///
///   found_inf:       the scale is multiplied by backoff_factor; clean_steps becomes 0
///   otherwise:       clean_steps grows by 1; if it has reached growth_interval (>=), the scale is
///                    multiplied by growth_factor and clean_steps becomes 0
///
/// - The scale never leaves [min_scale, max_scale]: a product beyond a limit becomes the limit. A
///   scale of 0 would make all gradients 0 forever; an infinite one would make them all NaN.
/// - now.scale is within the limits. Limits and factors are positive and finite; growth_factor is 1
///   or more, backoff_factor 1 or less. Counts and intervals may exceed the range of an int.
/// - Growth that the limit stops also sets clean_steps to 0.
/// - A product that is not finite in f32 counts as beyond max_scale.
/// - The function has no other effect and keeps no memory: equal arguments, equal results.
///
/// Example, growth_interval 3, from {1024, 0}:
///
///   found_inf      no          no          no         yes          no
///   after it    {1024, 1}   {1024, 2}   {2048, 0}   {1024, 0}   {1024, 1}
inline ScalerState next(ScalerState now, bool found_inf, const ScalerRules& rules) {
  throw std::logic_error("next is not written yet");
}
