// Scales of blocks that need more than the block's largest magnitude: chosen among targets by the
// error of the elements, rounded up or stochastically, or corrected after the elements are rounded.
// Sums over a block have one order, so that all backends agree to the bit: the elements of a row
// from left to right, row i added to sum i % 16, and the 16 sums in halves. For blocks of 1x16 and
// 16x16 that is the order of TransformerEngine's reference_nvfp4.py.
#pragma once

#include <halftone/core/accumulator.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone {

/// The scale above the blocks of a tensor. On the grid 1 / g becomes numerator / denominator for
/// errors: one rounding less.
struct TensorLevel {
  float g = 1, numerator = 1, denominator = 1;
};
HT_HD constexpr TensorLevel level_of(const QuantizeNumbers& n, float amax_tensor) {
  if (!n.tensor_level || !is_finite_magnitude(amax_tensor) || amax_tensor == 0) return {};
  return {tensor_level_of(n, amax_tensor), amax_tensor, n.base * n.level_max};
}

/// Returns the random word of a block's scale. first: the number of the block's first element.
HT_HD uint32_t scale_word(RandomKey key, uint64_t first) {
  return Philox::words(key.seed ^ 0x5363616c65000000u,
                       key.offset + first / 4)[std::size_t(first % 4)];
}

/// Calls function.operator()<rounding>() for a rounding of scales.
template <class Function>
HT_HD constexpr decltype(auto) visit_scale_rounding(Rounding rounding, Function&& function) {
  if (rounding == Rounding::up) return function.template operator()<Rounding::up>();
  if (rounding == Rounding::stochastic) return function.template operator()<Rounding::stochastic>();
  return function.template operator()<Rounding::nearest_even>();
}

namespace detail {
template <Rounding rounding>
HT_HD constexpr float short_scale(const QuantizeNumbers& n, float wanted, uint32_t random) {
  return round_on<rounding, true>(n.scale_grid, wanted > n.scale_max ? n.scale_max : wanted,
                                  random);
}
}  // namespace detail

/// Returns the scale of a block that puts its largest magnitude at a target. target: its number;
/// without targets 0, for the grid's largest. It selects numbers instead of branching.
template <ScaleKind kind, Rounding rounding>
HT_HD constexpr Scale scale_for_target(const QuantizeNumbers& n, float amax,
                                       const TensorLevel& level, int32_t target, uint32_t random) {
  constexpr float largest = std::numeric_limits<float>::max();
  const float at = n.target_count > 0 ? n.targets[target] : n.max;
  const bool finite = is_finite_magnitude(amax);
  const auto where = [](bool usable, float a) { return detail::choose(usable, a, 1.0f); };
  if constexpr (kind == ScaleKind::power_of_two) {
    QuantizeNumbers moved = n;
    moved.max = at, moved.max_exponent = int32_t(magnitude_bits(at) >> 23) - 127;
    const int32_t e = scale_exponent(moved, amax);
    return {where(finite, power_of_two(-e)), where(finite, power_of_two(e)), 1};
  } else if constexpr (kind == ScaleKind::f32) {
    const float d = where(finite && amax / at != 0, amax / at);
    return {d, d, 1};
  } else {
    const float inverse_g = 1 / level.g;
    const float wanted = n.target_count > 0 ? amax / n.base * level.g * (n.base / at)
                                            : amax * (level.g * n.inverse_max);
    const float b = detail::short_scale<rounding>(n, wanted, random);
    const float u = 1 / (b * inverse_g);
    return {where(finite, u > largest ? largest : u), where(finite, b), where(finite, inverse_g)};
  }
}
/// The same for a kind and a rounding that are known at run time.
HT_HD constexpr Scale scale_for_target(const QuantizeNumbers& n, float amax,
                                       const TensorLevel& level, int32_t target, uint32_t random) {
  return visit_scale_kind(n.kind, [&]<ScaleKind kind>() {
    return visit_scale_rounding(
        n.corrected ? Rounding::nearest_even : n.scale_rounding, [&]<Rounding rounding>() {
          return scale_for_target<kind, rounding>(n, amax, level, target, random);
        });
  });
}

/// Returns the rounding of elements that errors and corrections see.
HT_HD constexpr Rounding measured_rounding(Rounding rounding) {
  return rounding == Rounding::stochastic ? Rounding::nearest_even : rounding;
}
/// Returns an element's contribution to the error of a scale. number: x on the grid.
HT_HD constexpr float error_term(ScaleError error, const Scale& scale, const TensorLevel& level,
                                 float number, float x) {
  const float value = number * scale.out * level.numerator / level.denominator;
  const float difference = rounded_sum(value, -x);
  if (error == ScaleError::mse) return rounded_product(difference, difference);
  return difference < 0 ? -difference : difference;
}
HT_HD constexpr float combined(ScaleError error, float a, float b) {
  return error == ScaleError::max ? (b > a ? b : a) : rounded_sum(a, b);
}

/// Returns a corrected scale: xx and xq are sums over the block of (x in)^2 and x in times its
/// number on the grid.
HT_HD constexpr Scale corrected_scale(const QuantizeNumbers& n, const Scale& scale, float xx,
                                      float xq, uint32_t random) {
  const float quotient = xx / xq;
  const float by = is_finite_magnitude(quotient) ? quotient : 1;
  const float out = visit_scale_rounding(n.scale_rounding, [&]<Rounding rounding>() {
    return detail::short_scale<rounding>(n, scale.out * by, random);
  });
  return {scale.in, out, scale.tail};
}

/// Sums in the order above.
class BlockSum {
 public:
  HT_HD constexpr explicit BlockSum(ScaleError error = ScaleError::mse) : error_(error) {}
  HT_HD constexpr void add_row(int64_t row, float sum) {
    float& to = sums_[row % ways];
    to = combined(error_, to, sum);
  }
  HT_HD constexpr float total() {
    for (int32_t half = ways / 2; half > 0; half /= 2)
      for (int32_t i = 0; i < half; ++i) sums_[i] = combined(error_, sums_[i], sums_[i + half]);
    return sums_[0];
  }
  static constexpr int32_t ways = 16;

 private:
  ScaleError error_;
  float sums_[ways]{};
};

/// Returns the sum of term(row, column) over a block.
template <class Term>
HT_HD constexpr float block_total(ScaleError error, int64_t rows, int64_t columns,
                                  const Term& term) {
  BlockSum sum(error);
  for (int64_t i = 0; i < rows; ++i) {
    float of_row = 0;
    for (int64_t j = 0; j < columns; ++j) of_row = combined(error, of_row, term(i, j));
    sum.add_row(i, of_row);
  }
  return sum.total();
}

/// Returns the scale of a block, one element at a time. at(row, column): an element; amax: their
/// largest magnitude; total(error, term): the sum over the block of term(x), as block_total().
template <class Total>
HT_HD constexpr Scale block_scale(const QuantizeNumbers& n, float amax, const TensorLevel& level,
                                  uint32_t random, const Total& total) {
  QuantizeNumbers measured = n;
  measured.rounding = measured_rounding(n.rounding);
  const auto number = [&](const Scale& scale, float x) {
    return quantize_element(measured, {scale.in, 1, 1}, x, 0);
  };
  Scale best = scale_for_target(n, amax, level, 0, random);
  if (!is_finite_magnitude(amax)) return best;
  const auto error_of = [&](const Scale& scale) {
    return total(n.error,
                 [&](float x) { return error_term(n.error, scale, level, number(scale, x), x); });
  };
  float least = n.target_count > 1 ? error_of(best) : 0;
  for (int32_t k = 1; k < n.target_count; ++k) {
    const Scale scale = scale_for_target(n, amax, level, k, random);
    const float error = error_of(scale);
    if (error < least) least = error, best = scale;
  }
  if (!n.corrected) return best;
  const float xx = total(ScaleError::mse, [&](float x) {
    const float scaled = x * best.in;
    return rounded_product(scaled, scaled);
  });
  const float xq = total(ScaleError::mse,
                         [&](float x) { return rounded_product(x * best.in, number(best, x)); });
  return corrected_scale(n, best, xx, xq, random);
}

}  // namespace halftone
