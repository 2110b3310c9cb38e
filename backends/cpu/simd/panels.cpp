// bf16 panels: packing, and products on AVX512-BF16. A block of 8 rows and 32 columns of c stays in
// registers while the depth runs; of a row two neighbouring depths are broadcast at a time.
#include <halftone/backends/cpu/simd/panel_rows.h>

namespace halftone::simd::panels {

using Shorts [[gnu::vector_size(32)]] = uint16_t;
using Pairs [[gnu::vector_size(64)]] = uint32_t;

// Of each quarter of two vectors: their lower or upper pairs in turn, their lower or upper halves.
static Pairs low(Pairs a, Pairs b) {
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
}
static Pairs high(Pairs a, Pairs b) {
  return __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
}
static Pairs low_halves(Pairs a, Pairs b) {
  return __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
}
static Pairs high_halves(Pairs a, Pairs b) {
  return __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}

/// y[j][i] = x[i][j] for 16 x 16 pairs. Loading quarters of rows does half of the exchanges.
[[gnu::always_inline]] static inline void transpose_pairs(const uint16_t* x, uint16_t* y) {
#pragma GCC unroll 4
  for (int quarter = 0; quarter < 4; ++quarter) {
    Pairs rows[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const auto load = [&](int below) {
        const uint16_t* from = x + (i + below) * 32 + quarter * 8;
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      };
      __m512i row = _mm512_zextsi128_si512(load(0));
      row = _mm512_inserti32x4(row, load(4), 1);
      row = _mm512_inserti32x4(row, load(8), 2);
      rows[i] = Pairs(_mm512_inserti32x4(row, load(12), 3));
    }
    const Pairs a = low(rows[0], rows[1]), b = low(rows[2], rows[3]);
    const Pairs c = high(rows[0], rows[1]), d = high(rows[2], rows[3]);
    const Pairs columns[4] = {low_halves(a, b), high_halves(a, b), low_halves(c, d),
                              high_halves(c, d)};
    __builtin_memcpy(y + quarter * 4 * 32, columns, sizeof columns);
  }
}

/// y[i][j] = the pair x[2 i][j], x[2 i + 1][j] for 16 pairs of rows, 16 columns.
[[gnu::always_inline]] static inline void interleave_rows(const uint16_t* x, int64_t stride,
                                                          uint16_t* y) {
  const auto row = [&](int i) {
    Shorts shorts;
    __builtin_memcpy(&shorts, x + i * stride, sizeof shorts);
    return __builtin_convertvector(shorts, Pairs);
  };
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    const Pairs pairs = row(2 * i) | row(2 * i + 1) << 16;
    __builtin_memcpy(y + i * 32, &pairs, sizeof pairs);
  }
}

/// One tile of 16 outer indices (rows of a, columns of b) by 32 depths. pairs_in_rows: the tile has
/// a row per pair of depths (b), else a row per outer index (a).
template <bool depth_contiguous, bool pairs_in_rows>
[[gnu::always_inline]] static inline void pack_tile(const uint16_t* x, int64_t stride,
                                                    uint16_t* tile) {
  if constexpr (depth_contiguous && pairs_in_rows) {
    // Rows whole powers of two apart fall into one set of the first-level cache: read them once.
    alignas(64) uint16_t rows[tile_elements];
    for (int i = 0; i < 16; ++i) __builtin_memcpy(rows + i * 32, x + i * stride, 64);
    transpose_pairs(rows, tile);
  } else if constexpr (depth_contiguous) {
    for (int i = 0; i < 16; ++i) __builtin_memcpy(tile + i * 32, x + i * stride, 64);
  } else if constexpr (pairs_in_rows) {
    interleave_rows(x, stride, tile);
  } else {
    alignas(64) uint16_t pairs[tile_elements];
    interleave_rows(x, stride, pairs);
    // Through memory, as written: GCC 12 would shuffle its way around, at two thirds of the speed.
    __asm__ volatile("" : : : "memory");
    transpose_pairs(pairs, tile);
  }
}

/// rows x columns elements of x in a square of 32 x 32, zeros behind them.
static void pad(const uint16_t* x, int64_t stride, int64_t rows, int64_t columns,
                uint16_t* square) {
  const auto used = first_lanes<__mmask32>(columns);
  for (int64_t i = 0; i < 32; ++i)
    _mm512_storeu_si512(square + i * 32, _mm512_maskz_loadu_epi16(i < rows ? used : 0,
                                                                  x + (i < rows ? i : 0) * stride));
}

/// `outer` rows of a or columns of b in panels, read along the rows of the memory.
template <bool depth_contiguous, bool pairs_in_rows>
static void pack(const uint16_t* x, int64_t stride, int64_t outer, int64_t depth,
                 uint16_t* panels) {
  const int64_t panel = (depth + depth_unit - 1) / depth_unit * depth_unit * panel_width;
  const auto one = [&](int64_t o, int64_t d) {
    const uint16_t* from = x + (depth_contiguous ? o * stride + d : d * stride + o);
    uint16_t* tile =
        panels + o / panel_width * panel + d * panel_width + o % panel_width * depth_unit;
    if (outer - o >= 16 && depth - d >= depth_unit)
      return pack_tile<depth_contiguous, pairs_in_rows>(from, stride, tile);
    uint16_t square[32 * 32];
    pad(from, stride, depth_contiguous ? outer - o : depth - d,
        depth_contiguous ? depth - d : outer - o, square);
    pack_tile<depth_contiguous, pairs_in_rows>(square, 32, tile);
  };
  if constexpr (depth_contiguous) {
    for (int64_t o = 0; o < outer; o += 16)
      for (int64_t d = 0; d < depth; d += depth_unit) one(o, d);
  } else {
    for (int64_t d = 0; d < depth; d += depth_unit)
      for (int64_t o = 0; o < outer; o += 16) one(o, d);
  }
}

void pack_rows(const Matrix& a, int64_t rows, int64_t depth, uint16_t* panels) {
  const auto* x = static_cast<const uint16_t*>(a.data);
  if (a.column == 1) pack<true, false>(x, a.row, rows, depth, panels);
  else pack<false, false>(x, a.column, rows, depth, panels);
}
void pack_columns(const Matrix& b, int64_t depth, int64_t columns, uint16_t* panels) {
  const auto* x = static_cast<const uint16_t*>(b.data);
  if (b.column == 1) pack<false, true>(x, b.row, columns, depth, panels);
  else pack<true, true>(x, b.column, columns, depth, panels);
}

void copy_rows(const uint16_t* const* rows, int64_t number, int64_t offset, int64_t count,
               uint16_t* to) {
  const auto used = first_lanes<__mmask32>(count);
  for (int64_t i = 0; i < number; ++i) {
    const __m512i row = rows[i] ? _mm512_maskz_loadu_epi16(used, rows[i] + offset) : __m512i{};
    _mm512_mask_storeu_epi16(to + i * depth_unit, used, row);
  }
}

/// Rows i to i + Count of one tile of a, by one or both tiles of b.
template <int Count, int Tiles>
[[gnu::always_inline]] static inline void multiply_rows(int64_t depth, const uint16_t* a,
                                                        const Rows& rows, const uint16_t* b,
                                                        const Target& to, int64_t i) {
  __m512 sums[Count][Tiles];
#pragma GCC unroll 8
  for (int r = 0; r < Count; ++r)
#pragma GCC unroll 2
    for (int t = 0; t < Tiles; ++t) sums[r][t] = _mm512_setzero_ps();
  const auto add_pair = [&](const uint16_t* pairs_of_a, const uint16_t* pairs_of_b) {
    __m512bh columns[Tiles];
#pragma GCC unroll 2
    for (int t = 0; t < Tiles; ++t)
      columns[t] = (__m512bh)_mm512_loadu_si512(pairs_of_b + t * tile_elements);
#pragma GCC unroll 8
    for (int r = 0; r < Count; ++r) {
      int pair;
      __builtin_memcpy(&pair, pairs_of_a + r * rows.row, sizeof pair);
      const auto element = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
      for (int t = 0; t < Tiles; ++t)
        sums[r][t] = _mm512_dpbf16_ps(sums[r][t], element, columns[t]);
    }
  };
  for (; depth > 0; depth -= depth_unit, a += rows.unit, b += 2 * tile_elements) {
    const int64_t pairs = depth < depth_unit ? (depth + 1) / 2 : depth_unit / 2;
    for (int64_t p = 0; p < pairs; ++p) add_pair(a + 2 * p, b + p * 32);
  }
  const __mmask16 used[2]{first_lanes<__mmask16>(to.columns),
                          first_lanes<__mmask16>(to.columns - 16)};
#pragma GCC unroll 8
  for (int r = 0; r < Count; ++r)
    if (i + r < to.rows)
#pragma GCC unroll 2
      for (int t = 0; t < Tiles; ++t) store_half(to, i + r, t, used[t], sums[r][t]);
}

template <int Tiles>
static void multiply_panel(int64_t depth, const Rows& rows, const uint16_t* b, const Target& to) {
  for (int64_t i = 0; i < to.rows; i += 8) {
    const uint16_t* a = rows.data + i / 16 * rows.tile + i % 16 * rows.row;
    if (to.rows - i > 4) multiply_rows<8, Tiles>(depth, a, rows, b, to, i);
    else multiply_rows<4, Tiles>(depth, a, rows, b, to, i);
  }
}

void Products::multiply(int64_t depth, const Rows& a, const uint16_t* b, const Target& to) {
  if (to.columns > 16) multiply_panel<2>(depth, a, b, to);
  else multiply_panel<1>(depth, a, b, to);
}

}  // namespace halftone::simd::panels
