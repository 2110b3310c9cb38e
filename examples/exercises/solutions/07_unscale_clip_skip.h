// unscale() divides once a step; everything else asks its two flags.
#pragma once

#include <cmath>
#include <limits>
#include <stdexcept>

#include "given.h"

inline void unscale(Training& t) {
  if (t.unscaled) throw std::logic_error("the gradients of this step are divided already");
  for (float& g : t.gradients) {
    if (!std::isfinite(g)) t.found_inf = true;
    g /= t.scale;
  }
  t.unscaled = true;
}

inline double clip(Training& t, double max_norm) {
  if (!t.unscaled) throw std::logic_error("call unscale() before clip()");
  if (t.found_inf) return std::numeric_limits<double>::infinity();
  double sum = 0;
  for (const float g : t.gradients) sum += double(g) * double(g);
  const double norm = std::sqrt(sum);
  if (norm > max_norm)
    for (float& g : t.gradients) g = float(g * (max_norm / norm));
  return norm;
}

inline bool step(Training& t, float lr) {
  if (!t.unscaled) unscale(t);
  if (t.found_inf) return false;
  for (std::size_t i = 0; i < t.weights.size(); ++i) t.weights[i] -= lr * t.gradients[i];
  ++t.steps;
  return true;
}

inline void update(Training& t) {
  if (t.found_inf) t.scale /= 2;
  t.found_inf = t.unscaled = false;
}
