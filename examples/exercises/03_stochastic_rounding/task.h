// Task 3: stochastic rounding without bias. Write the two functions, then run scripts/exercise.sh 3
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "given.h"

/// Returns the bits of one of the two bf16 numbers around x (see task 1 for the bits of a bf16).
/// `random` is uniform in 0 ... 65535.
///
/// With r the lower 16 bits of x, the result is the neighbor away from zero for exactly r of the
/// 65536 values of `random`, and the upper half of x for the others. So the mean over `random` is
/// exactly x: the rounding is unbiased.
///
/// - Which r values go away from zero is up to you.
/// - A number that is a bf16 already (r = 0) stays for every `random`. Zero keeps its sign.
/// - The neighbor of the largest finite number is infinity, as in nearest rounding.
/// - Infinity stays. NaN stays NaN for every `random`; its sign does not matter.
///
/// Example: 1.001953125 = 1 + 2^-9 has the bits 0x3f804000, so r = 0x4000. For 16384 values of
/// `random` the result is 0x3f81, for 49152 it is 0x3f80.
inline uint16_t stochastic_bf16(float x, uint16_t random) {
  throw std::logic_error("stochastic_bf16 is not written yet");
}

/// Makes step number `step` (0, 1, ...) of gradient descent on bf16 weights:
///
///   w[i] = stochastic_bf16(float(w[i]) - lr * gradients[i], a random number)
///
/// with f32 arithmetic. float(w) is std::bit_cast<float>(uint32_t(w) << 16). There are at most
/// 100000 weights and 2^32 steps.
///
/// Draw the random numbers with random_bits(seed, counter) of given.h. Any 16 of its 32 bits are
/// uniform in 0 ... 65535.
///
/// - Two calls with the same arguments give the same bits: a run can be repeated.
/// - Each element of each step draws with a counter that no other element of any step uses. (Two
///   draws may still give the same 16 bits, by chance.) An element that draws the same number in
///   every step is rounded down in every step or in none: the mean over elements is right, and the
///   mean over steps is wrong.
/// - Runs with different seeds share no random numbers. With a seed of seed + step, step 1 of a run
///   with seed 4 would draw the numbers of step 0 of a run with seed 5.
inline void sgd_step(std::vector<uint16_t>& weights, const std::vector<float>& gradients, float lr,
                     uint64_t seed, uint64_t step) {
  throw std::logic_error("sgd_step is not written yet");
}
