// A sum of equal terms stops at 256 of them: the spacing above is 2 terms, and 256 is even.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

#include "numbers.h"

inline float sum_bf16(std::span<const float> terms) {
  float sum = 0;
  for (const float x : terms) sum = numbers::bf16(sum + x);
  return sum;
}

inline float sum_f32(std::span<const float> terms) {
  float sum = 0;
  for (const float x : terms) sum += x;
  return numbers::bf16(sum);
}

inline float sum_pairwise_bf16(std::span<const float> terms) {
  if (terms.size() < 2) return terms.empty() ? 0 : terms[0];
  const std::size_t half = terms.size() / 2;
  const float left = sum_pairwise_bf16(terms.first(half));
  return numbers::bf16(left + sum_pairwise_bf16(terms.subspan(half)));
}

inline float predicted_sum_bf16(float term, int64_t count) {
  return term * float(std::min<int64_t>(count, 256));
}

enum class Method { bf16, pairwise_bf16, f32 };

inline double error_bound(Method method, int64_t n) {
  const auto levels = double(std::bit_width(uint64_t(n - 1)));
  if (method == Method::f32) return double(n - 1) * 0x1p-24 + 0x1p-8;
  return (method == Method::bf16 ? double(n - 1) : levels) * 0x1p-8;
}
