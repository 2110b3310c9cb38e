// Long and short products, both signs, cancellation, and the bound of the task as tolerance.
#pragma once

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "numbers.h"

using Dot = float (*)(std::span<const float> a, std::span<const float> b);

inline bool within_bound(Dot dot, const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0, magnitudes = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum += double(a[i]) * b[i];
    magnitudes += std::fabs(double(a[i]) * b[i]);
  }
  return std::fabs(dot(a, b) - sum) <= double(a.size()) * 0x1p-24 * magnitudes;
}

inline bool accepts(Dot dot) {
  for (const std::size_t n : {0, 1, 2, 3, 7, 8, 9, 63, 65, 255, 257, 300, 1000, 4099, 40000}) {
    std::vector<float> a(n), b(n), ones(n, 1.0f);
    for (std::size_t i = 0; i < n; ++i) {
      a[i] = numbers::bf16(0.3 + double(i * 7 % 11));
      b[i] = numbers::bf16(double(i * 5 % 13) - 6.4);  // both signs
    }
    if (!within_bound(dot, a, b) || !within_bound(dot, ones, ones)) return false;
    if (n < 2) continue;
    ones[n - 1] = -numbers::bf16(double(n));  // cancels
    if (!within_bound(dot, ones, std::vector<float>(n, 1.0f))) return false;
  }
  for (const float x : {300.0f, 0x1p-20f, 0x1p-49f, 0x1p60f})
    if (!within_bound(dot, {x}, {x}) || !within_bound(dot, {x, x, x}, {x, -x, x})) return false;
  const std::vector<float> bad{1, std::numeric_limits<float>::quiet_NaN(), 1};
  return std::isnan(dot(bad, std::vector<float>(3, 1.0f)));
}
