// The type of task 11: a tensor in NVFP4.
#pragma once

#include <vector>

struct Nvfp4 {
  float tensor_scale = 1;             // f32, one for the tensor
  std::vector<float> block_scales{};  // numbers of e4m3, one for each block of 16 elements
  std::vector<float> elements{};      // numbers of e2m1
};
