// The exponent of the largest magnitude decides; everything else is one rounding.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <vector>

#include "given.h"
#include "numbers.h"

inline uint8_t scale_code(std::span<const float> block) {
  float largest = 0;
  for (const float x : block) {
    if (!std::isfinite(x)) return 127;
    largest = std::max(largest, std::fabs(x));
  }
  if (largest == 0) return 0;
  return uint8_t(std::clamp(std::ilogb(largest) - 8, -127, 127) + 127);
}

inline Mxfp8 mx_quantize(std::span<const float> x) {
  if (x.size() % 32 != 0) throw std::invalid_argument("the count is not a multiple of 32");
  Mxfp8 q;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (i % 32 == 0) q.scales.push_back(scale_code(x.subspan(i, 32)));
    q.elements.push_back(numbers::e4m3(std::ldexp(double(x[i]), 127 - q.scales.back())));
  }
  return q;
}

inline std::vector<float> mx_dequantize(const Mxfp8& q) {
  std::vector<float> y;
  for (std::size_t i = 0; i < q.elements.size(); ++i)
    y.push_back(std::ldexp(q.elements[i], q.scales[i / 32] - 127));
  return y;
}
