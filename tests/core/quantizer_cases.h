// Clips whose bounds show a sum of squares that is wrong by a few units in the last place.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include <halftone/core/formats/block_scale.h>

namespace halftone::test {

/// Adds numbers in 256 lanes, and then halves of the lanes.
inline double lanes_sum(const std::vector<double>& terms) {
  std::vector<double> lanes(256);
  for (std::size_t i = 0; i < terms.size(); ++i) lanes[i % 256] += terms[i];
  for (std::size_t half = 128; half > 0; half /= 2)
    for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

/// The sum of the squares of finite numbers, in the order that clip_bound() defines.
inline double ordered_squares(std::span<const float> x) {
  std::vector<double> sums;
  for (std::size_t begin = 0; begin < x.size(); begin += 4096) {
    std::vector<double> squares;
    for (std::size_t i = begin; i < x.size() && i < begin + 4096; ++i)
      squares.push_back(std::isfinite(x[i]) ? double(x[i]) * double(x[i]) : 0);
    sums.push_back(lanes_sum(squares));
  }
  return lanes_sum(sums);
}

/// Returns two clips. Before the rounding to f32, their bounds for a sum of squares of `count`
/// numbers are on the two sides of the middle between 1 and the next float, as near as f64 allows.
/// With a sum that differs by more than 2 units in the last place, one bound of the two is another
/// float: the bound is a product with the square root.
inline std::array<Clip, 2> clips_near_the_middle(double sum, int64_t count) {
  double above = (1 + 0x1p-24) / std::sqrt(sum / double(count));
  const auto is_above = [&](double multiple) { return bound_by_rms(multiple, sum, count) > 1; };
  while (!is_above(above)) above = std::nextafter(above, std::numeric_limits<double>::infinity());
  while (is_above(std::nextafter(above, 0.0))) above = std::nextafter(above, 0.0);
  return {Clip{.rms = above}, Clip{.rms = std::nextafter(above, 0.0)}};
}

}  // namespace halftone::test
