// Vectors of magnitudes, and the rounding of finite numbers to nearest, a vector at a time.
#pragma once

#include <halftone/backends/cpu/simd/local.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/formats/quantizer.h>

namespace halftone::simd::HALFTONE_ISA {

using Bits [[gnu::vector_size(vector_bytes)]] = int32_t;

[[gnu::always_inline]] static inline Bits larger(Bits a, Bits b) { return b > a ? b : a; }
[[gnu::always_inline]] static inline Bits magnitudes(Vector x) { return Bits(x) & 0x7fffffff; }

[[gnu::always_inline]] static inline uint32_t largest_of(const float* x, int64_t n) {
  Bits most{}, second{};  // every instruction set has signed comparisons
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    most = larger(most, magnitudes(load(x + i)));
    second = larger(second, magnitudes(load(x + i + lanes)));
  }
  most = larger(most, second);
  for (; i + lanes <= n; i += lanes) most = larger(most, magnitudes(load(x + i)));
  if (i < n) {
    Vector rest{};
    __builtin_memcpy(&rest, x + i, std::size_t(n - i) * sizeof(float));
    most = larger(most, magnitudes(rest));
  }
  return uint32_t(over_lanes(most, [](Bits a, Bits b) { return larger(a, b); }));
}

static float as_magnitude(uint32_t bits) {
  return __builtin_bit_cast(float, bits > 0x7f800000u ? nan_magnitude : bits);
}

/// round_by_addition() of finite numbers, a vector at a time: to nearest even, on a grid that is
/// not wide.
class NearestOnGrid {
 public:
  explicit NearestOnGrid(const Grid& grid)
      : most_(bits(2 * grid.max)),
        max_(bits(grid.max)),
        above_(bits(grid.above)),
        least_(grid.least_field << 23),
        drop_(grid.drop << 23),
        saturates_(grid.above == grid.max),
        serves_(grid.subnormal_drop == grid.drop && grid.above == grid.below) {}
  /// Return whether the grid can be rounded to here, and whether numbers beyond its largest number
  /// become that number.
  bool serves() const { return serves_; }
  bool saturates() const { return saturates_; }

  template <bool saturates> [[gnu::always_inline]] Vector operator()(Vector x) const {
    const Bits magnitude = smaller(magnitudes(x), Bits{} + (saturates ? max_ : most_));
    const Vector power = Vector(larger(magnitude & 0x7f800000, Bits{} + least_) + drop_);
    Bits value = Bits((Vector(magnitude) + power) - power);
    if (!saturates) value = value > max_ ? Bits{} + above_ : value;
    return Vector(value | (Bits(x) & int32_t(0x80000000u)));
  }

 private:
  static int32_t bits(float x) { return __builtin_bit_cast(int32_t, x); }
  static Bits smaller(Bits a, Bits b) { return a < b ? a : b; }
  int32_t most_, max_, above_, least_, drop_;
  bool saturates_, serves_;
};

// The scales of blocks side by side: from their largest magnitudes, or by trying scales on their
// elements (core/formats/block_scale.h).

/// The scales of blocks side by side, one for each column, so that the following loops do not stop
/// at blocks. Whole vectors are written; the last may end after `most`.
struct ColumnScales {
  static constexpr int64_t most = most_columns_of_inner;
  float in[most + lanes], out[most + lanes], tail[most + lanes];
};
/// The scales of blocks side by side, one for each block.
struct BlockScales {
  float largest[ColumnScales::most], in[ColumnScales::most], out[ColumnScales::most],
      tail[ColumnScales::most];
};
static void spread(const float* of_blocks, int64_t blocks, int64_t columns, float* to) {
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < columns; i += lanes)
      store(to + b * columns + i, of_blocks[b] - Vector{});
}

static void spread(const BlockScales& scales, int64_t blocks, int64_t columns, ColumnScales& to) {
  spread(scales.in, blocks, columns, to.in);
  spread(scales.out, blocks, columns, to.out);
  spread(scales.tail, blocks, columns, to.tail);
}

[[gnu::always_inline]] static inline uint32_t largest_of_block(const BlockBand& band,
                                                               const float* x, int64_t width) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < band.rows; ++i) {
    const uint32_t of_row = largest_of(x + i * band.row_step, width);
    largest = of_row > largest ? of_row : largest;
  }
  return largest;
}

/// Returns the largest magnitude of a block of `vectors` vectors in each row.
template <int vectors>
[[gnu::always_inline]] static inline int32_t largest_of_vectors(const BlockBand& band,
                                                                const float* x) {
  Bits most{};
  for (int64_t i = 0; i < band.rows; ++i)
    for (int k = 0; k < vectors; ++k)
      most = larger(most, magnitudes(load(x + i * band.row_step + k * lanes)));
  return over_lanes(most, [](Bits a, Bits b) { return larger(a, b); });
}

/// Finds the largest magnitude of each block in the first `width` columns of a band.
static void fill_largest(const BlockBand& band, int64_t columns, const float* x, int64_t width,
                         float* largest) {
  const int64_t whole = width / columns;
  const auto fill = [&]<int vectors>() {
    int32_t bits[ColumnScales::most];
    for (int64_t b = 0; b < whole; ++b)
      bits[b] = largest_of_vectors<vectors>(band, x + b * columns);
    for (int64_t b = 0; b < whole; ++b) largest[b] = as_magnitude(uint32_t(bits[b]));
    return whole * columns;
  };
  int64_t begin = 0;
  if (columns == lanes) begin = fill.template operator()<1>();
  else if (columns == 2 * lanes) begin = fill.template operator()<2>();
  else if (columns == 4 * lanes) begin = fill.template operator()<4>();
  for (; begin < width; begin += columns)
    largest[begin / columns] = as_magnitude(
        largest_of_block(band, x + begin, width - begin < columns ? width - begin : columns));
}

/// Computes the scales of `blocks` blocks from their largest magnitudes. flatten: no function of
/// core may stay un-inlined here (local.h). rule: a constant, so that the loop has no branches.
/// wide: of.scale_grid.is_wide().
template <ScaleKind kind, ScaleRule rule, bool wide = true>
[[gnu::flatten]] static void fill_scales(const QuantizeNumbers& of, float amax_tensor,
                                         int64_t blocks, BlockScales& scales) {
  QuantizeNumbers numbers = of;  // a copy that the writes cannot change
  numbers.rule = rule;
  const float g = tensor_level_of(numbers, amax_tensor);
#pragma GCC ivdep
  for (int64_t b = 0; b < blocks; ++b) {
    const Scale scale = scale_of_block<kind, wide>(numbers, scales.largest[b], g);
    scales.in[b] = scale.in, scales.out[b] = scale.out, scales.tail[b] = scale.tail;
  }
}
template <ScaleKind kind>
static void fill_scales(const QuantizeNumbers& of, float amax_tensor, int64_t blocks,
                        BlockScales& scales) {
  if constexpr (kind == ScaleKind::power_of_two) switch (of.rule) {
      case ScaleRule::floor: break;
      case ScaleRule::ceil:
        return fill_scales<kind, ScaleRule::ceil>(of, amax_tensor, blocks, scales);
      case ScaleRule::rceil:
        return fill_scales<kind, ScaleRule::rceil>(of, amax_tensor, blocks, scales);
      case ScaleRule::even:
        return fill_scales<kind, ScaleRule::even>(of, amax_tensor, blocks, scales);
    }
  if (kind == ScaleKind::on_grid && !of.scale_grid.is_wide())
    return fill_scales<kind, ScaleRule::floor, false>(of, amax_tensor, blocks, scales);
  fill_scales<kind, ScaleRule::floor>(of, amax_tensor, blocks, scales);
}

/// Sums of the terms of blocks side by side: block_total() of each.
struct BandSums {
  int64_t blocks, columns;
  float terms[ColumnScales::most + lanes], of_rows[BlockSum::ways][ColumnScales::most];

  void add_row(ScaleError error, int64_t row) {
    float sums[ColumnScales::most];
    int64_t first = 0;  // a vector has the sums of neighboring blocks
    for (; error != ScaleError::max && first + lanes <= blocks; first += lanes) {
      Vector sum{};
      for (int64_t j = 0; j < columns; ++j) {
        Vector of_blocks;
        for (int k = 0; k < lanes; ++k) of_blocks[k] = terms[(first + k) * columns + j];
        sum += of_blocks;
      }
      store(sums + first, sum);
    }
    for (int64_t b = first; b < blocks; ++b) {
      sums[b] = 0;
      for (int64_t j = 0; j < columns; ++j)
        sums[b] = combined(error, sums[b], terms[b * columns + j]);
    }
    float* const to = of_rows[row % BlockSum::ways];
    for (int64_t b = 0; b < blocks; ++b)
      to[b] = row < BlockSum::ways ? sums[b] : combined(error, to[b], sums[b]);
  }
  /// Leaves the totals in of_rows[0]. rows: the number of rows that were added.
  void finish(ScaleError error, int64_t rows) {
    for (int64_t half = BlockSum::ways / 2; half > 0; half /= 2)
      for (int64_t i = 0; i < half && i + half < rows; ++i)
        for (int64_t b = 0; b < blocks; ++b)
          of_rows[i][b] = combined(error, of_rows[i][b], of_rows[i + half][b]);
  }
};

/// Adds term(x, number of x on the grid, column) over each block of a band to `sums`. in: the
/// factors (divisors, if `divides`) of the columns.
template <Rounding rounding, bool wide, class Term>
[[gnu::always_inline]] static inline void sum_band(const Grid& on, bool divides, ScaleError error,
                                                   const BlockBand& band, const float* x,
                                                   int64_t width, const float* in, BandSums& sums,
                                                   const Term& term) {
  const Grid grid = on;
  float scaled[ColumnScales::most];
  for (int64_t i = width; i < sums.blocks * sums.columns; ++i) sums.terms[i] = 0;
  for (int64_t row = 0; row < band.rows; ++row) {
    const float* const of_row = x + row * band.row_step;
    if (divides)
      for (int64_t i = 0; i < width; ++i) scaled[i] = of_row[i] / in[i];
    else
      for (int64_t i = 0; i < width; ++i) scaled[i] = of_row[i] * in[i];
#pragma GCC ivdep
    for (int64_t i = 0; i < width; ++i)
      sums.terms[i] =
          term(of_row[i], scaled[i],
               quantize_scaled<rounding, wide>(grid, Scale{}, of_row[i], scaled[i], 0), i);
    sums.add_row(error, row);
  }
  sums.finish(error, band.rows);
}

/// scale_for_target() for blocks side by side. Not inlined: its many loops would be compiled for
/// each rounding of fill_measured().
[[gnu::flatten, gnu::noinline]] static void fill_targets(const QuantizeNumbers& of,
                                                         const TensorLevel& level, int32_t target,
                                                         int64_t blocks, const float* largest,
                                                         const uint32_t* words,
                                                         BlockScales& scales) {
  const QuantizeNumbers n = of;  // a copy that the writes cannot change
  visit_scale_kind(n.kind, [&]<ScaleKind kind>() {
    visit_scale_rounding(
        n.corrected ? Rounding::nearest_even : n.scale_rounding, [&]<Rounding rounding>() {
          const auto fill = [&]<bool wide>() {
#pragma GCC ivdep
            for (int64_t b = 0; b < blocks; ++b) {
              const Scale scale =
                  scale_for_target<kind, rounding, wide>(n, largest[b], level, target, words[b]);
              scales.in[b] = scale.in, scales.out[b] = scale.out;
              scales.tail[b] = scale.tail;
            }
          };
          if (kind != ScaleKind::on_grid || n.scale_grid.is_wide())
            fill.template operator()<true>();
          else fill.template operator()<false>();
        });
  });
}

/// fill_scales() for scales that depend on elements or random numbers. first: the number of x.
template <Rounding measured, bool wide>
[[gnu::flatten]] static void fill_measured(const QuantizeNumbers& of, float amax_tensor,
                                           RandomKey key, uint64_t first, const BlockBand& band,
                                           const float* x, int64_t width, BlockScales& found) {
  const QuantizeNumbers n = of;
  const TensorLevel level = level_of(n, amax_tensor);
  const bool divides = n.kind == ScaleKind::f32;
  BandSums sums;
  sums.columns = n.columns, sums.blocks = (width + n.columns - 1) / n.columns;
  const int64_t blocks = sums.blocks;
  float* const largest = found.largest;
  float least[ColumnScales::most], xx[ColumnScales::most];
  ColumnScales scales;
  BlockScales other;
  uint32_t words[ColumnScales::most];
  fill_largest(band, n.columns, x, width, largest);
  for (int64_t b = 0; b < blocks; ++b)
    words[b] = n.scale_rounding == Rounding::stochastic
                   ? scale_word(key, first + uint64_t(b * n.columns))
                   : 0;
  fill_targets(n, level, 0, blocks, largest, words, found);
  for (int32_t k = 0; k < n.target_count && n.target_count > 1; ++k) {
    BlockScales& tried = k == 0 ? found : other;
    if (k > 0) fill_targets(n, level, k, blocks, largest, words, tried);
    spread(tried.in, blocks, n.columns, scales.in);
    spread(tried.out, blocks, n.columns, scales.out);
    const auto try_with = [&]<ScaleError error>() {
      sum_band<measured, wide>(
          n.grid, divides, error, band, x, width, scales.in, sums,
          [&](float value, float, float number, int64_t i) {
            return error_term(error, Scale{1, scales.out[i], 1}, level, number, value);
          });
    };
    if (n.error == ScaleError::mse) try_with.template operator()<ScaleError::mse>();
    else if (n.error == ScaleError::mae) try_with.template operator()<ScaleError::mae>();
    else try_with.template operator()<ScaleError::max>();
    for (int64_t b = 0; b < blocks; ++b) {
      const bool takes = k == 0 || sums.of_rows[0][b] < least[b];
      least[b] = takes ? sums.of_rows[0][b] : least[b];
      found.in[b] = takes ? tried.in[b] : found.in[b];
      found.out[b] = takes ? tried.out[b] : found.out[b];
    }
  }
  if (n.corrected) {
    spread(found.in, blocks, n.columns, scales.in);
    const auto sum = [&](const auto& term) {
      sum_band<measured, wide>(n.grid, divides, ScaleError::mse, band, x, width, scales.in, sums,
                               term);
    };
    sum([](float, float scaled, float, int64_t) { return scaled * scaled; });
    for (int64_t b = 0; b < blocks; ++b) xx[b] = sums.of_rows[0][b];
    sum([](float, float scaled, float number, int64_t) { return scaled * number; });
    for (int64_t b = 0; b < blocks; ++b)
      if (is_finite_magnitude(largest[b])) {
        const Scale scale{found.in[b], found.out[b], found.tail[b]};
        found.out[b] = corrected_scale(n, scale, xx[b], sums.of_rows[0][b], words[b]).out;
      }
  }
}

}  // namespace halftone::simd::HALFTONE_ISA
