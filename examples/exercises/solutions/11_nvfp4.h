// Two passes: the largest of the tensor, then block by block.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <vector>

#include "given.h"
#include "numbers.h"

inline double largest_magnitude(std::span<const float> x) {
  double largest = 0;
  for (const float y : x) largest = std::max(largest, std::fabs(double(y)));
  return largest;
}

inline Nvfp4 nvfp4_quantize(std::span<const float> x) {
  if (x.size() % 16 != 0) throw std::invalid_argument("the count is not a multiple of 16");
  Nvfp4 q;
  const double largest = largest_magnitude(x);
  if (largest > 0) q.tensor_scale = float(largest / (448 * 6));
  const double s = q.tensor_scale;
  for (std::size_t begin = 0; begin < x.size(); begin += 16) {
    const std::span<const float> block = x.subspan(begin, 16);
    const double b = numbers::e4m3(largest_magnitude(block) / 6 / s);
    q.block_scales.push_back(float(b));
    for (const float y : block) q.elements.push_back(b == 0 ? 0 : numbers::e2m1(y / (b * s)));
  }
  return q;
}

inline std::vector<float> nvfp4_dequantize(const Nvfp4& q) {
  std::vector<float> y;
  for (std::size_t i = 0; i < q.elements.size(); ++i)
    y.push_back(q.elements[i] * q.block_scales[i / 16] * q.tensor_scale);
  return y;
}
