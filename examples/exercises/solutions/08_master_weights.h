// The masters are the weights; the model has a rounded copy.
#pragma once

#include "given.h"
#include "numbers.h"

inline Weights make_weights(const std::vector<float>& initial) {
  Weights weights;
  for (const float w : initial) {
    weights.model.push_back(numbers::bf16_bits(w));
    weights.masters.push_back(w);
  }
  return weights;
}

inline void step(Weights& weights, const std::vector<uint16_t>& gradients, float lr, float decay) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    float& w = weights.masters[i];
    w -= lr * (numbers::from_bf16(gradients[i]) + decay * w);
    weights.model[i] = numbers::bf16_bits(w);
  }
}

inline void write_model(Weights& weights, const std::vector<uint16_t>& model) {
  for (std::size_t i = 0; i < model.size(); ++i)
    if (model[i] != weights.model[i]) weights.masters[i] = numbers::from_bf16(model[i]);
  weights.model = model;
}

inline std::vector<float> save(const Weights& weights) { return weights.masters; }

inline Weights restore(const std::vector<float>& saved) { return make_weights(saved); }
