// Scales of blocks that need more than the block's largest magnitude: chosen among targets by the
// error of the elements, rounded up or stochastically, or corrected after the elements are rounded.
// Sums over a block have one order, so that all backends agree to the bit: the elements of a row
// from left to right, row i added to sum i % 16, and the 16 sums in halves. For blocks of 1x16 and
// 16x16 that is the order of TransformerEngine's reference_nvfp4.py.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <string_view>

#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/quantizer.h>
#include <halftone/core/language.h>
#include <halftone/core/random.h>

namespace halftone {

/// The scale g of a tensor, above the scales of its blocks. numerator / denominator is 1 / g with
/// one rounding less: errors of targets are computed with it.
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
template <Rounding rounding, bool wide = true>
HT_HD constexpr float short_scale(const QuantizeNumbers& n, float wanted, uint32_t random) {
  return round_on<rounding, wide>(n.scale_grid, wanted > n.scale_max ? n.scale_max : wanted,
                                  random);
}
}  // namespace detail

/// Returns the scale that puts the largest magnitude of a block, amax, at n.targets[target];
/// without targets (target 0), at the grid's largest number. It selects numbers instead of
/// branching. wide: n.scale_grid.is_wide(), for loops that know it.
template <ScaleKind kind, Rounding rounding, bool wide = true>
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
    const float b = detail::short_scale<rounding, wide>(n, wanted, random);
    const float u = 1 / (b * inverse_g);
    return {where(finite, u > largest ? largest : u), where(finite, b), where(finite, inverse_g)};
  }
}
/// Returns the same for a kind and a rounding of scales that are known at run time.
HT_HD constexpr Scale scale_for_target(const QuantizeNumbers& n, float amax,
                                       const TensorLevel& level, int32_t target, uint32_t random) {
  return visit_scale_kind(n.kind, [&]<ScaleKind kind>() {
    return visit_scale_rounding(
        n.corrected ? Rounding::nearest_even : n.scale_rounding, [&]<Rounding rounding>() {
          return scale_for_target<kind, rounding>(n, amax, level, target, random);
        });
  });
}

/// Returns the rounding by which errors and corrections of scales are computed (not stochastic).
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

/// Returns the scale whose `out` is scale.out * xx / xq, rounded (with `random`) to the scales'
/// format. Sums over the block, with z = x * scale.in and q = z on the grid: xx of z^2, xq of z *
/// q.
HT_HD constexpr Scale corrected_scale(const QuantizeNumbers& n, const Scale& scale, float xx,
                                      float xq, uint32_t random) {
  const float quotient = xx / xq;
  const float by = is_finite_magnitude(quotient) ? quotient : 1;
  const float out = visit_scale_rounding(n.scale_rounding, [&]<Rounding rounding>() {
    return detail::short_scale<rounding>(n, scale.out * by, random);
  });
  return {scale.in, out, scale.tail};
}

/// Returns the index, 0 to count - 1, of the candidate with the least error over a block; of equal
/// ones, the first. before(i, j): an element of the block; after(candidate, i, j): the element as
/// this candidate rounds it.
template <class Before, class After>
HT_HD int least_candidate(ScaleError by, int count, int64_t rows, int64_t columns,
                          const Before& before, const After& after) {
  int best = 0;
  double least = 0;
  for (int k = 0; k < count; ++k) {
    double error = 0;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < columns; ++j) {
        const double d = double(after(k, i, j)) - double(before(i, j)), e = d < 0 ? -d : d;
        if (by == ScaleError::max) error = e > error ? e : error;
        else error += by == ScaleError::mse ? rounded_product(e, e) : e;
      }
    if (k == 0 || error < least) best = k, least = error;
  }
  return best;
}

/// Adds up a block in the order at the top of this file; for ScaleError::max, takes the largest.
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

/// Returns the scale of a block. amax: the largest magnitude of its elements; total(error, term):
/// the sum over its elements x of term(x), as block_total() computes it.
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

// The clip of a quantizer: large magnitudes are limited by a bound that is computed from the
// tensor. Every backend computes the bound and the clip with the functions of this file, in the
// order that clip_bound() defines, so results have the same bits everywhere.

/// Returns the bound for the numbers of a tensor; infinity without a clip. NaN and infinite numbers
/// do not count. With n finite numbers x:
///   rms r       f32(r sqrt(sum x^2 / n)). The sum is in f64: summed_by_lanes() for the squares of
///               each squares_together neighbors, and then for these sums
///   quantile q  the magnitude number max(1, ceil(q n)) in ascending order, counted from 1
float clip_bound(const Clip& clip, std::span<const float> values);

/// Throws UsageError in the name of `op` for a multiple that is not positive and finite, for a
/// quantile outside (0, 1], and if both have values.
void check_clip(std::string_view op, const Clip& clip);

// --- arithmetic of the kernels

inline constexpr int64_t squares_together = 4096;
inline constexpr int sum_lanes = 256;

/// Returns x as limited by the bound. NaN and infinite numbers stay.
HT_HD constexpr float clipped(float x, float bound) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = magnitude_bits(x);
  const bool beyond = magnitude < 0x7f800000u && magnitude > magnitude_bits(bound);
  return beyond ? std::bit_cast<float>((bits & 0x80000000u) | magnitude_bits(bound)) : x;
}

/// Returns the term of x in the sum of squares, which is exact.
HT_HD constexpr double finite_square(float x) {
  return is_finite_magnitude(x) ? double(x) * double(x) : 0;
}

/// Returns term(0) + ... + term(count - 1) in f64: lane l adds the terms l, l + 256, l + 512, ...
/// in this order; then the upper half of the lanes is added to the lower half until one is left.
template <class Term> HT_HD double summed_by_lanes(int64_t count, const Term& term) {
  double lanes[sum_lanes] = {};
  const int64_t whole = count - count % sum_lanes;
  for (int64_t i = 0; i < whole; i += sum_lanes)
    for (int l = 0; l < sum_lanes; ++l) lanes[l] += term(i + l);
  for (int64_t i = whole; i < count; ++i) lanes[i - whole] += term(i);
  for (int half = sum_lanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

/// Returns the bound for a Clip::rms. squares: the sum of squares of the `count` finite numbers.
HT_HD float bound_by_rms(double multiple, double squares, int64_t count) {
  return count > 0 ? float(multiple * std::sqrt(squares / double(count))) : 0.0f;
}

/// Returns the place, counted from 1, of the quantile among `count` > 0 ascending magnitudes.
HT_HD int64_t place_of_quantile(double share, int64_t count) {
  const auto wanted = int64_t(std::ceil(share * double(count)));
  return wanted < 1 ? 1 : (wanted > count ? count : wanted);
}

/// The bits of a magnitude in three digits. A kernel finds the magnitude at a place digit by digit:
/// it counts each value of a digit among the magnitudes with the same digits before it.
struct MagnitudeDigit {
  int shift, bits;
  HT_HD constexpr bool follows(uint32_t magnitude, uint32_t prefix) const {
    return magnitude < 0x7f800000u && magnitude >> (shift + bits) == prefix;
  }
  HT_HD constexpr uint32_t of(uint32_t magnitude) const {
    return magnitude >> shift & ((1u << bits) - 1);
  }
};
inline constexpr MagnitudeDigit magnitude_digits[] = {{20, 11}, {10, 10}, {0, 10}};
inline constexpr int most_digit_values = 1 << 11;

// Rotations of neighbors: a large number is spread over all of its group, so that one outlier does
// not take the grid from the others (Ashkboos et al. 2024; the NVFP4 training recipe, NVIDIA
// 2025).

/// Rotates groups of `size` (2, 4, ... 128) neighbors within a row. Numbers at the end of a row
/// that fill no group do not change. y = H x, or H^T x if `back`, with H the Sylvester matrix of
/// ones and minus ones over sqrt(size), after signs: neighbor j is negated if bit j of `signs` is
/// set; neighbor 64 + j if bit j of signs * high_factor is.
struct Rotation {
  int32_t size = 16;
  uint64_t signs = 0;
  bool back = false;
  /// if true, the signs are bits of `key` instead; key_stride as in QuantizeCall
  bool draws = false;
  RandomKey key{};
  uint64_t key_stride = 0;
  static constexpr int32_t largest = 128;
};

/// The signs of one rotation: bit j % 64 of half j / 64 belongs to neighbor j.
struct RotationSigns {
  static constexpr uint64_t high_factor = 0xd1342543de82ef95u, stream = 0x5369676e73000000u;
  uint64_t half[2];
};
/// Returns the signs of a rotation. key: rotation.key, with the offset of this replay.
HT_HD RotationSigns signs_of(const Rotation& rotation, RandomKey key) {
  if (!rotation.draws) return {{rotation.signs, rotation.signs * RotationSigns::high_factor}};
  const auto words = Philox::words(key.seed ^ RotationSigns::stream, key.offset);
  return {{uint64_t(words[1]) << 32 | words[0], uint64_t(words[3]) << 32 | words[2]}};
}

namespace detail {
HT_HD void flip_signs(float* values, int32_t size, const RotationSigns& signs) {
  for (int32_t j = 0; j < size; ++j)
    if ((signs.half[j / 64] >> j % 64 & 1u) != 0) values[j] = -values[j];
}
}  // namespace detail

/// Rotates one group in place. Sums come first and one product last, so that nothing can be fused:
/// the same bits everywhere. inverse_root: 1 / sqrt(size) in f32.
HT_HD void rotate_group(float* values, const Rotation& rotation, const RotationSigns& signs,
                        float inverse_root) {
  if (!rotation.back) detail::flip_signs(values, rotation.size, signs);
  for (int32_t half = 1; half < rotation.size; half *= 2)
    for (int32_t i = 0; i < rotation.size; ++i)
      if ((i & half) == 0) {
        const float a = values[i], b = values[i + half];
        values[i] = a + b, values[i + half] = a - b;
      }
  for (int32_t j = 0; j < rotation.size; ++j) values[j] *= inverse_root;
  if (rotation.back) detail::flip_signs(values, rotation.size, signs);
}

}  // namespace halftone
