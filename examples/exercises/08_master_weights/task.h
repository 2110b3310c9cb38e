// Task 8: master weights. Write the functions, then run scripts/exercise.sh 8
#pragma once

#include <stdexcept>

#include "given.h"
#include "numbers.h"  // numbers::bf16_bits(float), numbers::from_bf16(bits)

/// Returns weights whose masters are the f32 numbers `initial` and whose model weights are the
/// masters rounded to bf16 (nearest even). The masters keep all 24 significant bits.
inline Weights make_weights(const std::vector<float>& initial) {
  throw std::logic_error("make_weights is not written yet");
}

/// Makes one step of gradient descent with weight decay on the masters, in f32, and writes the
/// rounded masters to the model. `gradients` are bits of bf16 numbers.
///
///   master = master - lr * (gradient + decay * master)
///   model  = master rounded to bf16
inline void step(Weights& weights, const std::vector<uint16_t>& gradients, float lr, float decay) {
  throw std::logic_error("step is not written yet");
}

/// Writes new model weights, as a program does that loads a pretrained model or averages weights.
///
/// - Where the new bits differ from the old ones, the master becomes the new number. Otherwise the
///   next step would compute from the old master and undo the load.
/// - Where the bits are the same, the master stays: it has bits that the model weight lacks.
inline void write_model(Weights& weights, const std::vector<uint16_t>& model) {
  throw std::logic_error("write_model is not written yet");
}

/// Returns the numbers that a checkpoint has to store, one for each weight, such that
/// restore(save(w)) continues to the bit as w would.
inline std::vector<float> save(const Weights& weights) {
  throw std::logic_error("save is not written yet");
}

/// Returns the weights of a checkpoint.
inline Weights restore(const std::vector<float>& saved) {
  throw std::logic_error("restore is not written yet");
}

// Example: make_weights({1.001f}) has the model weight 1 (0x3f80) and the master 1.001. A step with
// gradient 1 (0x3f80), lr 0.001 and decay 0 gives the master 1.0, one with lr 0.01 the master 0.991
// and the model weight 0.9921875 (0x3f7e).
