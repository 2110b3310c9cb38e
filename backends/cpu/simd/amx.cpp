// bf16 panels and their products on AMX: a tile of a holds 16 rows of 32 depths, a tile of b 16
// pairs of depths for 16 columns, and one instruction adds their product to a tile of 16 x 16
// floats. Two tiles of a by two of b need one tile load per multiplication.
#include <halftone/backends/cpu/simd/amx.h>
#include <halftone/backends/cpu/simd/bf16_native.h>

namespace halftone::simd::amx {

static constexpr int64_t tile_elements = 16 * 32;
using Shorts [[gnu::vector_size(32)]] = uint16_t;
using Pairs [[gnu::vector_size(64)]] = uint32_t;

/// The first `count` lanes; none if it is negative, all if it is large.
template <class Mask> static Mask first_lanes(int64_t count) {
  constexpr int64_t all = sizeof(Mask) * 8;
  if (count >= all) return Mask(~Mask{0});
  return count <= 0 ? Mask{0} : Mask((uint64_t{1} << count) - 1);
}

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

/// Stores the sums of one product, a few rows at a time.
class Storing {
 public:
  Storing(const float* sums, const Target& to)
      : sums_(sums),
        to_(to),
        used_{first_lanes<__mmask16>(to.columns), first_lanes<__mmask16>(to.columns - 16)} {}

  [[gnu::always_inline]] void rows(int64_t count) {
    const int64_t end = row_ + count < to_.rows ? row_ + count : to_.rows;
    for (; row_ < end; ++row_) {
      half(0);
      if (used_[1]) half(1);
    }
  }

 private:
  [[gnu::always_inline]] void half(int h) const {
    __m512 sum = _mm512_load_ps(sums_ + row_ * panel_width + h * 16);
    if (to_.partial)
      sum += _mm512_maskz_loadu_ps(used_[h], to_.partial + row_ * to_.partial_stride + h * 16);
    if (to_.bias) sum += _mm512_maskz_loadu_ps(used_[h], to_.bias + h * 16);
    const int64_t at = row_ * to_.stride + h * 16;
    if (to_.bf16)
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(to_.c) + at, used_[h], round_bf16(sum));
    else _mm512_mask_storeu_ps(static_cast<float*>(to_.c) + at, used_[h], sum);
  }

  const float* sums_;
  Target to_;
  __mmask16 used_[2];
  int64_t row_ = 0;
};

Products::Products() {
  struct alignas(64) {
    uint8_t palette = 1, start_row = 0, reserved[14]{};
    uint16_t row_bytes[16]{64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16]{16, 16, 16, 16, 16, 16, 16, 16};
  } const shapes;
  __asm__ volatile("" : : "m"(shapes));
  _tile_loadconfig(&shapes);
}
Products::~Products() {
  Storing(sums_[1 - current_], before_).rows(panel_width);
  _tile_release();
}

/// sums[32][32] = a b, for the first 16 or all 32 rows and columns.
template <bool two_rows, bool two_columns>
static void multiply_tiles(int64_t depth_units, const Rows& rows, const uint16_t* b, float* sums,
                           Storing storing) {
  const uint16_t* a = rows.data;
  const int64_t a_bytes = rows.row * 2;
  constexpr int64_t row_bytes = 64, sum_bytes = panel_width * sizeof(float);
  const int64_t rows_per_unit = (panel_width + depth_units - 1) / depth_units;
  // The intrinsics do not say that tiles are read from memory: what was packed must be there.
  __asm__ volatile("" : : : "memory");
  _tile_zero(0);
  if constexpr (two_columns) _tile_zero(1);
  if constexpr (two_rows) _tile_zero(2);
  if constexpr (two_rows && two_columns) _tile_zero(3);
  // The panel of b passes by: the hint leaves the first-level cache to the panel of a, which serves
  // many.
  for (int64_t d = 0; d < depth_units; ++d, a += rows.unit, b += 2 * tile_elements) {
    _tile_stream_loadd(6, b, row_bytes);
    _tile_loadd(4, a, a_bytes);
    if constexpr (two_columns) _tile_stream_loadd(7, b + tile_elements, row_bytes);
    if constexpr (two_rows) _tile_loadd(5, a + rows.tile, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (two_columns) _tile_dpbf16ps(1, 4, 7);
    if constexpr (two_rows) _tile_dpbf16ps(2, 5, 6);
    if constexpr (two_rows && two_columns) _tile_dpbf16ps(3, 5, 7);
    storing.rows(rows_per_unit);
  }
  _tile_stored(0, sums, sum_bytes);
  if constexpr (two_columns) _tile_stored(1, sums + 16, sum_bytes);
  if constexpr (two_rows) _tile_stored(2, sums + 16 * panel_width, sum_bytes);
  if constexpr (two_rows && two_columns) _tile_stored(3, sums + 16 * panel_width + 16, sum_bytes);
}

void Products::multiply(int64_t depth_units, const Rows& a, const uint16_t* b, const Target& to) {
  float* sums = sums_[current_];
  const Storing storing(sums_[1 - current_], before_);
  if (to.rows > 16) {
    if (to.columns > 16) multiply_tiles<true, true>(depth_units, a, b, sums, storing);
    else multiply_tiles<true, false>(depth_units, a, b, sums, storing);
  } else {
    if (to.columns > 16) multiply_tiles<false, true>(depth_units, a, b, sums, storing);
    else multiply_tiles<false, false>(depth_units, a, b, sums, storing);
  }
  before_ = to, current_ = 1 - current_;
}

}  // namespace halftone::simd::amx
