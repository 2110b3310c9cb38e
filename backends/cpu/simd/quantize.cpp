// Rounds numbers to grids: loops around the functions of core/quantizer.h, one per rounding.
// Compiled without fused multiply-adds, because every instruction set must give the same bits.
#include <halftone/backends/cpu/simd/philox.h>
#include <halftone/core/accumulator.h>
#include <halftone/core/quantizer.h>

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

template <Rounding rounding, bool wide>
static void quantize_run(const QuantizeNumbers& numbers, const Scale& scale, RandomKey key,
                         uint64_t first, const float* x, float* y, int64_t n) {
  const uint32_t mask = numbers.random_mask;
  const bool divides =
      numbers.per == Scaling::Per::block && numbers.kind == ScaleKind::f32 && scale.in != 1;
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
static void spread(const float* of_blocks, int64_t blocks, int64_t columns, float* to) {
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t i = 0; i < columns; i += lanes)
      store(to + b * columns + i, Vector{} + of_blocks[b]);
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

/// Computes the scales of the first `width` columns of a band whose blocks have at most
/// ColumnScales::most. flatten: no function of core may stay un-inlined here (local.h).
template <ScaleKind kind>
[[gnu::flatten]] static void fill_scales(const QuantizeNumbers& of, float amax_tensor,
                                         const BlockBand& band, const float* x, int64_t width,
                                         ColumnScales& scales) {
  const QuantizeNumbers numbers = of;  // a copy that the writes cannot change
  const int64_t columns = numbers.columns, blocks = (width + columns - 1) / columns;
  const float g = tensor_level_of(numbers, amax_tensor);
  float largest[ColumnScales::most], in[ColumnScales::most], out[ColumnScales::most],
      tail[ColumnScales::most];
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t begin = b * columns, count = width - begin < columns ? width - begin : columns;
    largest[b] = as_magnitude(largest_of_block(band, x + begin, count));
  }
#pragma GCC ivdep
  for (int64_t b = 0; b < blocks; ++b) {
    const Scale scale = scale_of_block<kind>(numbers, largest[b], g);
    in[b] = scale.in, out[b] = scale.out, tail[b] = scale.tail;
  }
  spread(in, blocks, columns, scales.in);
  spread(out, blocks, columns, scales.out);
  spread(tail, blocks, columns, scales.tail);
}

/// Quantizes columns [column, column + width) of a band whose blocks have at most
/// ColumnScales::most.
template <Rounding rounding, bool wide>
static void quantize_narrow(const QuantizeNumbers& numbers, float amax_tensor, RandomKey key,
                            const BlockBand& band, int64_t column, int64_t width, const float* x,
                            float* y) {
  ColumnScales scales;
  visit_scale_kind(numbers.kind, [&]<ScaleKind kind>() {
    fill_scales<kind>(numbers, amax_tensor, band, x + column, width, scales);
  });
  for (int64_t i = 0; i < band.rows; ++i) {
    const int64_t at = i * band.row_step + column;
    const uint64_t number = band.first + uint64_t(i * band.number_step + column);
    quantize_row<rounding, wide>(numbers, scales, key, number, x + at, y + at, width);
  }
}

[[gnu::flatten]] static Scale scale_of(const QuantizeNumbers& numbers, uint32_t largest,
                                       float amax_tensor) {
  return scale_of_block(numbers, as_magnitude(largest), amax_tensor);
}

/// Quantizes one block of any width.
template <Rounding rounding, bool wide>
static void quantize_block(const QuantizeNumbers& numbers, float amax_tensor, RandomKey key,
                           const BlockBand& band, int64_t column, int64_t width, const float* x,
                           float* y) {
  const uint32_t largest = largest_of_block(band, x + column, width);
  const Scale scale = scale_of(numbers, largest, amax_tensor);
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
