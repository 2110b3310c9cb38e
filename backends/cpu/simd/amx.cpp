// Products of bf16 panels on AMX: a tile of a holds 16 rows of 32 depths, a tile of b 16 pairs of
// depths for 16 columns, and one instruction adds their product to a tile of 16 x 16 floats. Two
// tiles of a by two of b need one tile load per multiplication.
#include <halftone/backends/cpu/simd/amx.h>
#include <halftone/backends/cpu/simd/panel_rows.h>

namespace halftone::simd::amx {

using panels::depth_unit, panels::panel_width, panels::Rows, panels::Target, panels::tile_elements;

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
    store_half(to_, row_, h, used_[h], _mm512_load_ps(sums_ + row_ * panel_width + h * 16));
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

void Products::multiply(int64_t depth, const Rows& a, const uint16_t* b, const Target& to) {
  const int64_t depth_units = (depth + depth_unit - 1) / depth_unit;
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
