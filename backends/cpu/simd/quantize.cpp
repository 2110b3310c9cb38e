// Rounds numbers to grids: loops around the functions of core/quantizer.h, one per rounding.
// Compiled without fused multiply-adds, because every instruction set must give the same bits.
#include <halftone/backends/cpu/simd/philox.h>
#include <halftone/core/block_scale.h>

namespace halftone::simd::HALFTONE_ISA {

using Bits [[gnu::vector_size(vector_bytes)]] = int32_t;

[[gnu::always_inline]] static inline Bits larger(Bits a, Bits b) { return b > a ? b : a; }
[[gnu::always_inline]] static inline Bits magnitudes(Vector x) { return Bits(x) & 0x7fffffff; }

[[gnu::always_inline]] static inline uint32_t largest_of(const float* x, int64_t n) {
  Bits most{};  // every instruction set has signed comparisons
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) most = larger(most, magnitudes(load(x + i)));
  if (i < n) {
    Vector rest{};
    __builtin_memcpy(&rest, x + i, std::size_t(n - i) * sizeof(float));
    most = larger(most, magnitudes(rest));
  }
  return uint32_t(over_lanes(most, [](Bits a, Bits b) { return larger(a, b); }));
}
static uint32_t largest_magnitude(const float* x, int64_t n) { return largest_of(x, n); }

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
  /// Returns whether the grid has subnormals, and whether numbers beyond the largest become it.
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

/// words: one per element, if the rounding is stochastic.
template <Rounding rounding, bool wide>
[[gnu::always_inline]] static inline void quantize_piece(const Grid on, const Scale by,
                                                         uint32_t mask, const uint32_t* words,
                                                         const float* x, float* y, int64_t n) {
  const Grid grid = on;  // a copy that writes to y cannot change
  const Scale scale = by;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i)
    y[i] = quantize_scaled<rounding, wide>(grid, scale, x[i], x[i] * scale.in,
                                           rounding == Rounding::stochastic ? words[i] & mask : 0);
}

/// Quantizes whole vectors of finite numbers to nearest, and returns how many numbers that were.
template <bool saturates>
static int64_t nearest_run(const NearestOnGrid& nearest, const Scale& by, const float* x, float* y,
                           int64_t n) {
  constexpr int64_t piece = 64 * lanes;
  const Vector in = Vector{} + by.in, out = Vector{} + by.out, tail = Vector{} + by.tail;
  int64_t i = 0;
  while (i + lanes <= n) {
    const int64_t count = n - i < piece ? (n - i) / lanes * lanes : piece;
    if (largest_of(x + i, count) >= 0x7f800000u) return i;
    for (const int64_t end = i + count; i < end; i += lanes)
      store(y + i, nearest.operator()<saturates>(load(x + i) * in) * out * tail);
  }
  return i;
}

template <Rounding rounding, bool wide>
static void quantize_run(const QuantizeNumbers& numbers, const Scale& scale, RandomKey key,
                         uint64_t first, const float* x, float* y, int64_t n) {
  const uint32_t mask = numbers.random_mask;
  const bool divides =
      numbers.per == Scaling::Per::block && numbers.kind == ScaleKind::f32 && scale.in != 1;
  if constexpr (rounding == Rounding::nearest_even && !wide)
    if (const NearestOnGrid nearest(numbers.grid); nearest.serves() && !divides) {
      const int64_t done = nearest.saturates() ? nearest_run<true>(nearest, scale, x, y, n)
                                               : nearest_run<false>(nearest, scale, x, y, n);
      first += uint64_t(done), x += done, y += done, n -= done;
    }
  if (rounding != Rounding::stochastic && !divides)
    return quantize_piece<rounding, wide>(numbers.grid, scale, mask, nullptr, x, y, n);
  // A block with a divisor has only finite numbers, and its quotients are finite, so they can
  // replace x.
  const Scale after{divides ? 1 : scale.in, scale.out, scale.tail};
  uint32_t words[4 * lanes];
  float quotients[4 * lanes];
  for (int64_t i = 0; i < n;) {
    const auto skipped = int64_t((first + uint64_t(i)) % 4);
    const int64_t count = n - i < 4 * lanes - skipped ? n - i : 4 * lanes - skipped;
    if (rounding == Rounding::stochastic)
      random_words(key.seed, key.offset + (first + uint64_t(i)) / 4, words);
    if (divides)
      for (int64_t k = 0; k < count; ++k) quotients[k] = x[i + k] / scale.in;
    quantize_piece<rounding, wide>(numbers.grid, after, mask, words + skipped,
                                   divides ? quotients : x + i, y + i, count);
    i += count;
  }
}

static void quantize(const QuantizeNumbers& numbers, const Scale& scale, RandomKey key,
                     uint64_t first, const float* x, float* y, int64_t n) {
  visit_rounding(numbers.rounding, [&]<Rounding r>() {
    if (numbers.wide) quantize_run<r, true>(numbers, scale, key, first, x, y, n);
    else quantize_run<r, false>(numbers, scale, key, first, x, y, n);
  });
}

/// The scales of blocks side by side, one for each column, so that the following loops do not stop
/// at blocks. Whole vectors are written; the last may end after `most`.
struct ColumnScales {
  static constexpr int64_t most = 512;
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
      store(to + b * columns + i, Vector{} + of_blocks[b]);
}

static void spread(const BlockScales& scales, int64_t blocks, int64_t columns, ColumnScales& to) {
  spread(scales.in, blocks, columns, to.in);
  spread(scales.out, blocks, columns, to.out);
  spread(scales.tail, blocks, columns, to.tail);
}

/// Quantizes a row of whole blocks of whole vectors, whose numbers are finite, to nearest.
template <ScaleKind kind>
static void nearest_row(const NearestOnGrid& nearest, const BlockScales& scales, int64_t blocks,
                        int64_t columns, const float* x, float* y) {
  for (int64_t b = 0; b < blocks; ++b) {
    const Vector in = Vector{} + scales.in[b], out = Vector{} + scales.out[b],
                 tail = Vector{} + scales.tail[b];
    for (int64_t i = b * columns; i < (b + 1) * columns; i += lanes) {
      const Vector given = load(x + i), scaled = kind == ScaleKind::f32 ? given / in : given * in;
      const Vector y_b = nearest.operator()<true>(scaled) * out;
      store(y + i, kind == ScaleKind::on_grid ? y_b * tail : y_b);
    }
  }
}

/// Quantizes the blocks of a band to nearest. Returns false, and does nothing, if a number is not
/// finite, or if a block has no whole vectors.
static bool nearest_rows(const QuantizeNumbers& numbers, const BlockScales& scales, int64_t blocks,
                         const BlockBand& band, const float* x, int64_t width, float* y) {
  const NearestOnGrid nearest(numbers.grid);
  if (numbers.columns % lanes != 0 || width % numbers.columns != 0 || !nearest.serves() ||
      !nearest.saturates())
    return false;
  for (int64_t b = 0; b < blocks; ++b)
    if (!is_finite_magnitude(scales.largest[b])) return false;
  visit_scale_kind(numbers.kind, [&]<ScaleKind kind>() {
    for (int64_t i = 0; i < band.rows; ++i)
      nearest_row<kind>(nearest, scales, blocks, numbers.columns, x + i * band.row_step,
                        y + i * band.row_step);
  });
  return true;
}

/// Quantizes one row of at most ColumnScales::most columns; x may be y.
template <Rounding rounding, bool wide>
static void quantize_row(const QuantizeNumbers& numbers, const ColumnScales& scales, RandomKey key,
                         uint64_t first, const float* x, float* y, int64_t n) {
  const Grid grid = numbers.grid;
  const uint32_t mask = numbers.random_mask;
  float scaled[ColumnScales::most];
  uint32_t words[ColumnScales::most + 4 * lanes];
  const auto skipped = int64_t(first % 4);
  if (rounding == Rounding::stochastic)
    for (int64_t i = 0; i < skipped + n; i += 4 * lanes) {
      uint32_t some[4 * lanes];
      random_words(key.seed, key.offset + (first + uint64_t(i)) / 4, some);
      __builtin_memcpy(words + i, some, sizeof some);
    }
  if (numbers.kind == ScaleKind::f32)
    for (int64_t i = 0; i < n; ++i) scaled[i] = x[i] / scales.in[i];
  else
    for (int64_t i = 0; i < n; ++i) scaled[i] = x[i] * scales.in[i];
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i)
    y[i] = quantize_scaled<rounding, wide>(
        grid, Scale{1, scales.out[i], scales.tail[i]}, x[i], scaled[i],
        rounding == Rounding::stochastic ? words[skipped + i] & mask : 0);
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

/// Finds the largest magnitude of each block in the first `width` columns of a band.
static void fill_largest(const BlockBand& band, int64_t columns, const float* x, int64_t width,
                         float* largest) {
  const int64_t whole = columns % lanes == 0 ? width / columns : 0;
  for (int64_t b = 0; b < whole; ++b) {
    Bits most{};
    for (int64_t i = 0; i < band.rows; ++i)
      for (const float *at = x + i * band.row_step + b * columns, *end = at + columns; at < end;
           at += lanes)
        most = larger(most, magnitudes(load(at)));
    largest[b] =
        as_magnitude(uint32_t(over_lanes(most, [](Bits p, Bits q) { return larger(p, q); })));
  }
  for (int64_t begin = whole * columns; begin < width; begin += columns)
    largest[begin / columns] = as_magnitude(
        largest_of_block(band, x + begin, width - begin < columns ? width - begin : columns));
}

/// Computes the scales of `blocks` blocks from their largest magnitudes. flatten: no function of
/// core may stay un-inlined here (local.h). rule: a constant, so that the loop has no branches.
template <ScaleKind kind, ScaleRule rule>
[[gnu::flatten]] static void fill_scales(const QuantizeNumbers& of, float amax_tensor,
                                         int64_t blocks, BlockScales& scales) {
  QuantizeNumbers numbers = of;  // a copy that the writes cannot change
  numbers.rule = rule;
  const float g = tensor_level_of(numbers, amax_tensor);
#pragma GCC ivdep
  for (int64_t b = 0; b < blocks; ++b) {
    const Scale scale = scale_of_block<kind>(numbers, scales.largest[b], g);
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
  fill_scales<kind, ScaleRule::floor>(of, amax_tensor, blocks, scales);
}

/// Sums of the terms of blocks side by side: block_total() of each.
struct BandSums {
  int64_t blocks, columns;
  float terms[ColumnScales::most + lanes], of_rows[BlockSum::ways][ColumnScales::most];

  void add_row(ScaleError error, int64_t row) {
    float sums[ColumnScales::most];
    for (int64_t b = 0; b < blocks; ++b) sums[b] = 0;
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t b = 0; b < blocks; ++b)
        sums[b] = combined(error, sums[b], terms[b * columns + j]);
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
  Scale best[ColumnScales::most], tried[ColumnScales::most];
  uint32_t words[ColumnScales::most];
  fill_largest(band, n.columns, x, width, largest);
  for (int64_t b = 0; b < blocks; ++b) {
    words[b] = n.scale_rounding == Rounding::stochastic
                   ? scale_word(key, first + uint64_t(b * n.columns))
                   : 0;
    best[b] = scale_for_target(n, largest[b], level, 0, words[b]);
  }
  const auto spread_scales = [&](const Scale* from) {
    float in[ColumnScales::most], out[ColumnScales::most];
    for (int64_t b = 0; b < blocks; ++b) in[b] = from[b].in, out[b] = from[b].out;
    spread(in, blocks, n.columns, scales.in);
    spread(out, blocks, n.columns, scales.out);
  };
  for (int32_t k = 0; k < n.target_count && n.target_count > 1; ++k) {
    for (int64_t b = 0; b < blocks; ++b)
      tried[b] = scale_for_target(n, largest[b], level, k, words[b]);
    spread_scales(tried);
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
      if (takes) best[b] = tried[b];
    }
  }
  if (n.corrected) {
    spread_scales(best);
    const auto sum = [&](const auto& term) {
      sum_band<measured, wide>(n.grid, divides, ScaleError::mse, band, x, width, scales.in, sums,
                               term);
    };
    sum([](float, float scaled, float, int64_t) { return scaled * scaled; });
    for (int64_t b = 0; b < blocks; ++b) xx[b] = sums.of_rows[0][b];
    sum([](float, float scaled, float number, int64_t) { return scaled * number; });
    for (int64_t b = 0; b < blocks; ++b)
      if (is_finite_magnitude(largest[b]))
        best[b] = corrected_scale(n, best[b], xx[b], sums.of_rows[0][b], words[b]);
  }
  for (int64_t b = 0; b < blocks; ++b)
    found.in[b] = best[b].in, found.out[b] = best[b].out, found.tail[b] = best[b].tail;
}

/// Quantizes columns [column, column + width) of a band whose blocks have at most
/// ColumnScales::most.
template <Rounding rounding, bool wide>
static void quantize_narrow(const QuantizeNumbers& numbers, float amax_tensor, RandomKey key,
                            const BlockBand& band, int64_t column, int64_t width, const float* x,
                            float* y) {
  BlockScales of_blocks;
  const int64_t blocks = (width + numbers.columns - 1) / numbers.columns;
  if (numbers.plain) {
    fill_largest(band, numbers.columns, x + column, width, of_blocks.largest);
    visit_scale_kind(numbers.kind, [&]<ScaleKind kind>() {
      fill_scales<kind>(numbers, amax_tensor, blocks, of_blocks);
    });
  } else {
    constexpr Rounding measured = measured_rounding(rounding);
    fill_measured<measured, wide || measured != Rounding::nearest_even>(
        numbers, amax_tensor, key, band.first + uint64_t(column), band, x + column, width,
        of_blocks);
  }
  if constexpr (rounding == Rounding::nearest_even && !wide)
    if (nearest_rows(numbers, of_blocks, blocks, band, x + column, width, y + column)) return;
  ColumnScales scales;
  spread(of_blocks, blocks, numbers.columns, scales);
  for (int64_t i = 0; i < band.rows; ++i) {
    const int64_t at = i * band.row_step + column;
    const uint64_t number = band.first + uint64_t(i * band.number_step + column);
    quantize_row<rounding, wide>(numbers, scales, key, number, x + at, y + at, width);
  }
}

/// band: of one block, whose first element is x[0], with the number `first`.
[[gnu::flatten]] static Scale scale_of(const QuantizeNumbers& numbers, uint32_t largest,
                                       float amax_tensor, RandomKey key, uint64_t first,
                                       const BlockBand& band, const float* x, int64_t width) {
  if (numbers.plain) return scale_of_block(numbers, as_magnitude(largest), amax_tensor);
  return block_scale(numbers, as_magnitude(largest), level_of(numbers, amax_tensor),
                     scale_word(key, first), [&](ScaleError error, const auto& term) {
                       return block_total(error, band.rows, width, [&](int64_t i, int64_t j) {
                         return term(x[i * band.row_step + j]);
                       });
                     });
}

/// Quantizes one block of any width.
template <Rounding rounding, bool wide>
static void quantize_block(const QuantizeNumbers& numbers, float amax_tensor, RandomKey key,
                           const BlockBand& band, int64_t column, int64_t width, const float* x,
                           float* y) {
  const uint32_t largest = largest_of_block(band, x + column, width);
  const Scale scale = scale_of(numbers, largest, amax_tensor, key, band.first + uint64_t(column),
                               band, x + column, width);
  for (int64_t i = 0; i < band.rows; ++i) {
    const int64_t at = i * band.row_step + column;
    const uint64_t number = band.first + uint64_t(i * band.number_step + column);
    quantize_run<rounding, wide>(numbers, scale, key, number, x + at, y + at, width);
  }
}

template <Rounding rounding, bool wide>
static void quantize_band(const QuantizeNumbers& numbers, float amax_tensor, RandomKey key,
                          const BlockBand& band, const float* x, float* y) {
  const bool narrow = numbers.columns <= ColumnScales::most;
  const int64_t together =
      narrow ? ColumnScales::most / numbers.columns * numbers.columns : numbers.columns;
  for (int64_t column = 0; column < band.columns; column += together) {
    const int64_t width = together < band.columns - column ? together : band.columns - column;
    if (narrow)
      quantize_narrow<rounding, wide>(numbers, amax_tensor, key, band, column, width, x, y);
    else quantize_block<rounding, wide>(numbers, amax_tensor, key, band, column, width, x, y);
  }
}

static void quantize_blocks(const QuantizeNumbers& numbers, float amax_tensor, RandomKey key,
                            const BlockBand& band, const float* x, float* y) {
  visit_rounding(numbers.rounding, [&]<Rounding r>() {
    if (numbers.wide) quantize_band<r, true>(numbers, amax_tensor, key, band, x, y);
    else quantize_band<r, false>(numbers, amax_tensor, key, band, x, y);
  });
}

template <Rounding rounding>
static void accumulate_rounded(const Grid& on, const float* a, int64_t depth, const float* b,
                               int64_t b_step, float* sums, int64_t n) {
  const Grid grid = on;
  for (int64_t i = 0; i < depth; ++i) {
    const float factor = a[i];
    const float* const row = b + i * b_step;
#pragma GCC ivdep
    for (int64_t j = 0; j < n; ++j)
      sums[j] =
          round_on<rounding, true>(grid, rounded_sum(sums[j], rounded_product(factor, row[j])), 0);
  }
}

static void accumulate_on(const Grid& grid, Rounding rounding, const float* a, int64_t depth,
                          const float* b, int64_t b_step, float* sums, int64_t n) {
  visit_rounding(rounding,
                 [&]<Rounding r>() { accumulate_rounded<r>(grid, a, depth, b, b_step, sums, n); });
}

void fill_quantize(Kernels& table) {
  table.largest_magnitude = largest_magnitude;
  table.quantize = quantize, table.quantize_blocks = quantize_blocks;
  table.accumulate_on = accumulate_on;
}

}  // namespace halftone::simd::HALFTONE_ISA
