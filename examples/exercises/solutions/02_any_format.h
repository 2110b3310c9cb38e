// x in units of the spacing is rounded to an integer.
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
  const int exponent = std::max(std::ilogb(x), format.min_exponent);
  const double spacing = std::ldexp(1.0, exponent - format.significand_bits + 1);
  const double y = std::nearbyint(std::fabs(x) / spacing) * spacing;
  return float(std::copysign(y > format.max ? beyond : y, x));
}
