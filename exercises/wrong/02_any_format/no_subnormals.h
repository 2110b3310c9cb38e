// wrong: Numbers below 2^min_exponent become zero.
// caught by: the examples of task.h
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "given.h"

inline Format ieee_format(int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  return {fraction_bits + 1, 1 - bias, std::ldexp(2 - std::ldexp(1.0, -fraction_bits), bias), true};
}

inline float round_to(const Format& format, float x) {
  if (std::isnan(x) || x == 0) return x;
  const double beyond = format.infinity ? std::numeric_limits<double>::infinity() : format.max;
  if (std::isinf(x)) return float(std::copysign(beyond, x));
  if (std::ilogb(x) < format.min_exponent) return std::copysign(0.0f, x);
  const int exponent = std::ilogb(x);
  const double spacing = std::ldexp(1.0, exponent - format.significand_bits + 1);
  const double y = std::nearbyint(std::fabs(x) / spacing) * spacing;
  return float(std::copysign(y > format.max ? beyond : y, x));
}
