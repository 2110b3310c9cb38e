// Task 14: write the test of a loss scaler that kills its mutants. The grader calls accepts() with
// correct implementations of task 6 and with mutants of it. Run scripts/exercise.sh 14
#pragma once

#include <stdexcept>

#include "../06_loss_scaler/given.h"

/// An implementation of next() of task 6.
using Scaler = ScalerState (*)(ScalerState now, bool found_inf, const ScalerRules& rules);

/// Returns whether `next` is correct by the rules in examples/exercises/06_loss_scaler/task.h:
///
///   found_inf:       scale *= backoff_factor, clean_steps = 0
///   otherwise:       clean_steps += 1; once it is growth_interval or more: scale *= growth_factor,
///                    clean_steps = 0, also if the limit stops the growth
///   always:          min_scale <= scale <= max_scale; the function keeps no memory
///
/// Call next() with states, flags and rules of your choice, and compare with results that you wrote
/// down or that your own next() gives. The scale that you pass must be within the limits, which are
/// positive and finite: correct implementations differ outside. Use growth factors of at least 1
/// and backoff factors of at most 1. Then correct implementations give the same floats.
///
/// There are sixteen mutants. A test that walks through one run of a training, with one set of
/// rules, kills about a third of them.
///
/// Example of a test that accepts too much:
///
///   return next({1024, 0}, true, {}).scale == 512;
inline bool accepts(Scaler next) { throw std::logic_error("accepts is not written yet"); }
