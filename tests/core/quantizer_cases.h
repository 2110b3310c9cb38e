// Quantizers with every kind of grid and scale; clips whose bounds show a sum of squares that is
// wrong by a few units in the last place.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone::test {

/// Every kind of grid and scale.
inline std::vector<Quantizer> usual_quantizers() {
  std::vector<Quantizer> all;
  for (const char* name :
       {"e4m3", "e5m2", "bf16", "e8m0", "mxfp8", "mxfp4", "nvfp4", "fp8_tensor", "fp8_block"})
    all.push_back(*quantizer_named(name));
  Quantizer square = *quantizer_named("nvfp4");
  square.scaling.rows = 16;
  all.push_back(square);
  Quantizer chosen = square;
  chosen.scaling.targets = {6, 4}, chosen.scaling.scale_max = 256;
  all.push_back(chosen);
  Quantizer corrected = *quantizer_named("nvfp4");
  corrected.scaling.corrected = true, corrected.scaling.scale_rounding = Rounding::stochastic;
  corrected.scaling.targets = {6, 4}, corrected.scaling.error = ScaleError::mae;
  all.push_back(corrected);
  Quantizer by_row = *quantizer_named("nvfp4");
  by_row.scaling.tensor_level = false, by_row.scaling.row_level = true;
  all.push_back(by_row);
  by_row.scaling.targets = {6, 4};
  all.push_back(by_row);
  Quantizer history{.grid = formats::e5m2, .scaling = Scaling::delayed()};
  all.push_back(history);
  Quantizer powers{.grid = formats::e4m3, .scaling = Scaling::per_tensor()};
  powers.scaling.power_of_two = true, powers.scaling.margin = 1, powers.scaling.least = 2;
  all.push_back(powers);
  for (const NumberFormat& format : {formats::e5m2, formats::bf16}) {
    Quantizer flushing{.grid = format};
    flushing.grid.subnormals = false;
    all.push_back(flushing);
  }
  Quantizer tall = *quantizer_named("mxfp8");
  tall.scaling.rows = 3, tall.grid.subnormals = false;
  all.push_back(tall);
  Quantizer chosen_power = *quantizer_named("mxfp8");  // depends on the elements, exact in bf16
  chosen_power.scaling.targets = {448, 240};
  all.push_back(chosen_power);
  chosen_power.scaling.rows = 3;
  all.push_back(chosen_power);
  // Blocks wider than a warp whose scales depend on their elements.
  Quantizer wide{.grid = formats::e2m1, .scaling = Scaling::per_block(3, 40, formats::f32)};
  wide.scaling.targets = {6, 5}, wide.scaling.error = ScaleError::max;
  all.push_back(wide);
  // Sub-blocks: HiFloat4, MX6, and more bits below divisors.
  Quantizer inner{.grid = NumberFormat::integer(4),
                  .scaling = Scaling::per_block(1, 64, NumberFormat::unsigned_float(6, 2))};
  inner.scaling.inner = {InnerScale{8, 1}, InnerScale{4, 1}};
  all.push_back(inner);
  inner = {.grid = NumberFormat::integer(5), .scaling = Scaling::per_block(1, 16)};
  inner.scaling.inner = {InnerScale{2, 1}};
  all.push_back(inner);
  inner = {.grid = formats::e2m1, .scaling = Scaling::per_block(3, 12, formats::f32)};
  inner.scaling.inner = {InnerScale{6, 2}, InnerScale{3, 3}};
  all.push_back(inner);
  Quantizer learned{.grid = NumberFormat::integer(4), .scaling = Scaling::per_tensor()};
  learned.scaling.learned = true;
  all.push_back(learned);
  learned.grid = formats::e2m1, learned.scaling.row_level = true;
  all.push_back(learned);
  for (const ScaleRule rule : {ScaleRule::ceil, ScaleRule::rceil, ScaleRule::even}) {
    Quantizer other = *quantizer_named("mxfp8");
    other.scaling.rule = rule;
    all.push_back(other);
  }
  return all;
}

/// Other grids, shapes of blocks, and choices and roundings of their scales.
inline std::vector<Quantizer> more_quantizers() {
  std::vector<Quantizer> all{*quantizer_named("int8")};
  const auto add = [&](const char* name, const auto& change) {
    all.push_back(*quantizer_named(name));
    change(all.back().scaling);
  };
  for (const char* name : {"nvfp4", "fp8_block", "mxfp6"})
    add(name, [](Scaling& s) { s.rows = 16, s.rule = ScaleRule::rceil; });
  add("mxfp8", [](Scaling&) {});
  all.back().grid = formats::bf16;  // a grid with subnormal floats on it, under a scale
  add("nvfp4", [](Scaling& s) { s.targets = {6, 4}, s.error = ScaleError::mae; });
  add("nvfp4", [](Scaling& s) { s.columns = 600, s.targets = {6, 4}, s.error = ScaleError::max; });
  add("mxfp4", [](Scaling& s) { s.rows = 20, s.columns = 3, s.targets = {6, 4, 3}; });
  add("fp8_block", [](Scaling& s) { s.targets = {448, 416}, s.error = ScaleError::max; });
  add("nvfp4", [](Scaling& s) { s.scale_rounding = Rounding::stochastic; });
  add("nvfp4", [](Scaling& s) {
    s.scale_rounding = Rounding::up, s.tensor_level = false;
    s.scale_format = NumberFormat::unsigned_float(5, 3);
  });
  add("nvfp4", [](Scaling& s) {
    s.scale_rounding = Rounding::stochastic, s.corrected = true, s.scale_max = 256;
    s.targets = {6.07f};
  });
  add("nvfp4", [](Scaling& s) {
    s.rows = 3, s.corrected = true, s.targets = {6, 4}, s.scale_rounding = Rounding::stochastic;
  });
  return all;
}

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
