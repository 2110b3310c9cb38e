// The type of task 8: weights in bf16 with master weights in f32.
#pragma once

#include <cstdint>
#include <vector>

struct Weights {
  std::vector<uint16_t> model{};  // bits of bf16 numbers, which the model computes with
  std::vector<float> masters{};   // what the optimizer updates
};
