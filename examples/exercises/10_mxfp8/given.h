// The type of task 10: a tensor in MXFP8.
#pragma once

#include <cstdint>
#include <vector>

struct Mxfp8 {
  std::vector<uint8_t> scales{};  // one e8m0 code for each block of 32 elements
  std::vector<float> elements{};  // numbers of e4m3, stored as f32
};
