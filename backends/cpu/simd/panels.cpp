// bf16 panels: packing, and products on AVX512-BF16. A block of 8 rows and 32 columns of c stays in
// registers for the whole depth; two neighboring depths of a row are broadcast at a time.
#include <cstdlib>
#include <halftone/backends/cpu/simd/panels.h>

#if defined(__AVX512BF16__)

#include <halftone/backends/cpu/simd/bf16_native.h>

namespace halftone::simd::panels {

using Pairs [[gnu::vector_size(64)]] = uint32_t;

// From each quarter of two vectors: their lower or upper pairs alternately, or their lower or upper
// halves.
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

/// Computes y[j][i] = x[i][j] for 16 x 16 pairs. Loading quarters of rows does half of the
/// exchanges.
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

/// Returns pairs of neighbors of two rows of 32, for the first or the second 16 columns.
[[gnu::always_inline]] static inline __m512i pairs_of(__m512i upper, __m512i lower, int half) {
  struct Indices {
    alignas(64) uint16_t from[64];
  };
  static constexpr Indices places = [] {
    Indices all{};
    for (int i = 0; i < 64; ++i) all.from[i] = uint16_t(i / 2 + i % 2 * 32);
    return all;
  }();
  return _mm512_permutex2var_epi16(upper, _mm512_load_si512(places.from + 32 * half), lower);
}

/// Writes two tiles: y[half][i][j] = the pair x[2 i][16 half + j], x[2 i + 1][16 half + j], where
/// row(i) is x[i]. Reads whole lines of memory.
template <class Row>
[[gnu::always_inline]] static inline void interleave_rows(const Row& row, uint16_t* y) {
#pragma GCC unroll 4
  for (int i = 0; i < 16; ++i) {
    const __m512i upper = row(2 * i), lower = row(2 * i + 1);
    _mm512_store_si512(y + i * 32, pairs_of(upper, lower, 0));
    _mm512_store_si512(y + tile_elements + i * 32, pairs_of(upper, lower, 1));
  }
}

/// Packs one tile of 16 rows of a or columns of b, whose 32 depths are contiguous in memory.
/// pairs_in_rows: the tile has a row per pair of depths (b), else a row per outer index (a).
template <bool pairs_in_rows>
[[gnu::always_inline]] static inline void pack_tile(const uint16_t* x, int64_t stride,
                                                    uint16_t* tile) {
  if constexpr (pairs_in_rows) {
    // Rows whose distance is a power of two map to one set of the first-level cache: read them
    // once.
    alignas(64) uint16_t rows[tile_elements];
    for (int i = 0; i < 16; ++i) __builtin_memcpy(rows + i * 32, x + i * stride, 64);
    transpose_pairs(rows, tile);
  } else {
    for (int i = 0; i < 16; ++i) __builtin_memcpy(tile + i * 32, x + i * stride, 64);
  }
}
/// Packs two tiles, of 32 rows or columns that are contiguous in memory, with one memory row per
/// depth.
template <bool pairs_in_rows>
[[gnu::always_inline]] static inline void pack_tiles(const uint16_t* x, int64_t stride,
                                                     uint16_t* tiles) {
  const auto row = [&](int i) { return _mm512_loadu_si512(x + i * stride); };
  if constexpr (pairs_in_rows) {
    interleave_rows(row, tiles);
  } else {
    alignas(64) uint16_t pairs[2 * tile_elements];
    interleave_rows(row, pairs);
    // Goes through memory as written: GCC 12 would use shuffles instead, at two thirds of the
    // speed.
    __asm__ volatile("" : : : "memory");
    transpose_pairs(pairs, tiles);
    transpose_pairs(pairs + tile_elements, tiles + tile_elements);
  }
}

/// Copies rows x columns elements of x into a square of 32 x 32, and fills it up with zeros.
static void pad(const uint16_t* x, int64_t stride, int64_t rows, int64_t columns,
                uint16_t* square) {
  const auto used = first_lanes<__mmask32>(columns);
  for (int64_t i = 0; i < 32; ++i)
    _mm512_store_si512(square + i * 32, _mm512_maskz_loadu_epi16(i < rows ? used : 0,
                                                                 x + (i < rows ? i : 0) * stride));
}

/// Packs `outer` rows of a or columns of b into panels, reading along the rows of the memory.
template <bool depth_contiguous, bool pairs_in_rows>
static void pack(const uint16_t* x, int64_t stride, int64_t outer, int64_t depth,
                 uint16_t* panels) {
  const int64_t panel = (depth + depth_unit - 1) / depth_unit * depth_unit * panel_width;
  // A unit of a panel: both tiles, or only the first if the second would be empty.
  const auto one = [&](int64_t o, int64_t d) {
    const uint16_t* from = x + (depth_contiguous ? o * stride + d : d * stride + o);
    uint16_t* tiles = panels + o / panel_width * panel + d * panel_width;
    alignas(64) uint16_t square[32 * 32];
    int64_t step = stride;
    if (outer - o < panel_width || depth - d < depth_unit) {
      pad(from, stride, depth_contiguous ? outer - o : depth - d,
          depth_contiguous ? depth - d : outer - o, square);
      from = square, step = 32;
    }
    if constexpr (depth_contiguous) {
      pack_tile<pairs_in_rows>(from, step, tiles);
      if (outer - o > 16) pack_tile<pairs_in_rows>(from + 16 * step, step, tiles + tile_elements);
    } else {
      pack_tiles<pairs_in_rows>(from, step, tiles);
    }
  };
  if constexpr (depth_contiguous) {
    for (int64_t o = 0; o < outer; o += panel_width)
      for (int64_t d = 0; d < depth; d += depth_unit) one(o, d);
  } else {
    for (int64_t d = 0; d < depth; d += depth_unit)
      for (int64_t o = 0; o < outer; o += panel_width) one(o, d);
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

void find_rows(const Places& places, const uint16_t* source, int64_t row, int64_t column,
               int64_t height, int64_t width, int64_t pixel, const uint16_t** rows) {
  const auto shift = int64_t(reinterpret_cast<uintptr_t>(source)) +
                     (row * width + column) * pixel * int64_t(sizeof(uint16_t));
  const __m512i begin = _mm512_set1_epi64(shift);
  for (int64_t i = 0; i < panel_width; i += 8) {
    const auto inside = [&](const int32_t* at, int64_t by, int64_t end) {
      const __m256i moved = _mm256_add_epi32(_mm256_loadu_si256((const __m256i*)(at + i)),
                                             _mm256_set1_epi32(int32_t(by)));
      return _mm256_cmplt_epu32_mask(moved, _mm256_set1_epi32(int32_t(end)));
    };
    const auto used =
        __mmask8(inside(places.row, row, height) & inside(places.column, column, width));
    const __m512i bytes = _mm512_slli_epi64(_mm512_loadu_si512(places.offset + i), 1);
    _mm512_storeu_si512(rows + i, _mm512_maskz_add_epi64(used, bytes, begin));
  }
}

void pack_pairs(const uint16_t* const* rows, int64_t offset, uint16_t* tiles) {
  interleave_rows([&](int i) { return rows[i] ? _mm512_loadu_si512(rows[i] + offset) : __m512i{}; },
                  tiles);
}

void copy_rows(const uint16_t* const* rows, int64_t number, int64_t offset, int64_t count,
               uint16_t* to) {
  if (count == depth_unit) {
    for (int64_t i = 0; i < number; ++i)
      _mm512_storeu_si512(to + i * depth_unit,
                          rows[i] ? _mm512_loadu_si512(rows[i] + offset) : __m512i{});
    return;
  }
  const auto used = first_lanes<__mmask32>(count);
  for (int64_t i = 0; i < number; ++i) {
    const __m512i row = rows[i] ? _mm512_maskz_loadu_epi16(used, rows[i] + offset) : __m512i{};
    _mm512_mask_storeu_epi16(to + i * depth_unit, used, row);
  }
}

/// Multiplies rows i to i + Count of one tile of a by one or both tiles of b.
template <int Count, int Tiles>
[[gnu::always_inline]] static inline void multiply_rows(int64_t depth, const uint16_t* a,
                                                        const Rows& rows, const uint16_t* b,
                                                        const Target& to, int64_t i) {
  __m512 sums[Count][Tiles];
#pragma GCC unroll 8
  for (int r = 0; r < Count; ++r)
#pragma GCC unroll 2
    for (int t = 0; t < Tiles; ++t)
      sums[r][t] = to.begun ? _mm512_loadu_ps(to.begun + (i + r) * panel_width + t * 16)
                            : _mm512_setzero_ps();
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

#else

// The bf16 products of panels.h for CPUs that have no such instructions.
// has_bf16_products() is false there, so nothing calls them.

namespace halftone::simd {

namespace panels {
void pack_rows(const Matrix&, int64_t, int64_t, uint16_t*) { std::abort(); }
void pack_columns(const Matrix&, int64_t, int64_t, uint16_t*) { std::abort(); }
void find_rows(const Places&, const uint16_t*, int64_t, int64_t, int64_t, int64_t, int64_t,
               const uint16_t**) {
  std::abort();
}
void pack_pairs(const uint16_t* const*, int64_t, uint16_t*) { std::abort(); }
void copy_rows(const uint16_t* const*, int64_t, int64_t, int64_t, uint16_t*) { std::abort(); }
void Products::multiply(int64_t, const Rows&, const uint16_t*, const Target&) { std::abort(); }
}  // namespace panels

namespace amx {
Products::Products() { std::abort(); }
Products::~Products() = default;
void Products::multiply(int64_t, const panels::Rows&, const uint16_t*, const panels::Target&) {
  std::abort();
}
void Products::fetch(const panels::Ahead&, int64_t) { std::abort(); }
}  // namespace amx

}  // namespace halftone::simd

#endif
