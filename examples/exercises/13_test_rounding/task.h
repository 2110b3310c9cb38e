// Task 13: write the test of a rounding that kills its mutants. The grader calls accepts() with
// correct implementations of task 1 and with mutants of it. Run scripts/exercise.sh 13
#pragma once

#include <stdexcept>

#include "given.h"
#include "numbers.h"  // numbers::bf16_bits(x): right, but slow

/// Returns whether `round` is a correct rounding to bf16, by the rules in
/// examples/exercises/01_round_to_bf16/task.h: nearest even; subnormal numbers like all others; the sign of
/// zero; infinity from the middle between 0x7f7f and 0x7f80 on; NaN stays NaN with its sign.
///
/// Choose the inputs and compare. numbers::bf16_bits has the right answers, so the inputs are the
/// exercise: 2^32 floats do not fit in the time limit of 5 s for all implementations together.
///
/// - Correct implementations differ in one thing: which NaN they return. Any code from 0x7f81 to
///   0x7fff is right (and from 0xff81 to 0xffff for a NaN with a sign).
/// - There are fourteen mutants with one bug each. The verdict names those that survive.
/// - If a correct implementation is rejected, print the input and both results with std::printf
///   before you return false. The lines are shown with the verdict.
///
/// Think of classes of inputs: what does a random float almost never hit?
///
/// Example of a test that accepts too much: return round(1.0f) == 0x3f80;
inline bool accepts(Rounding round) { throw std::logic_error("accepts is not written yet"); }
