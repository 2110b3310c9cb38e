// Products of bf16 panels on AMX: a tile of a holds 16 rows of 32 depths, a tile of b 16 pairs of
// depths for 16 columns, and one instruction adds their product to a tile of 16 x 16 floats. Two
// tiles of a by two of b need one tile load per multiplication.
#include <halftone/backends/cpu/simd/bf16_native.h>
#include <halftone/backends/cpu/simd/panels.h>

namespace halftone::simd::amx {

using panels::depth_unit, panels::panel_width, panels::Rows, panels::Target, panels::tile_elements;

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
  store_rows(panel_width);
  _tile_release();
}

/// Stores the waiting sums, a few rows at a time.
[[gnu::always_inline]] inline void Products::store_rows(int64_t count) {
  const Target& to = waiting_;
  const float* sums = sums_[1 - current_] + stored_ * panel_width;
  const int64_t end = stored_ + count < to.rows ? stored_ + count : to.rows;
  const bool whole = to.columns == panel_width && !to.bias;
  if (whole && to.bf16) {
    auto* c = static_cast<uint16_t*>(to.c) + stored_ * to.stride;
    for (; stored_ < end; ++stored_, c += to.stride, sums += panel_width)
      _mm512_storeu_si512(
          c, _mm512_inserti64x4(_mm512_castsi256_si512(round_bf16(_mm512_load_ps(sums))),
                                round_bf16(_mm512_load_ps(sums + 16)), 1));
  } else if (whole) {
    auto* c = static_cast<float*>(to.c) + stored_ * to.stride;
    for (; stored_ < end; ++stored_, c += to.stride, sums += panel_width)
      for (int half = 0; half < 32; half += 16) {
        const __m512 sum = _mm512_load_ps(sums + half);
        _mm512_storeu_ps(c + half, to.accumulate ? sum + _mm512_loadu_ps(c + half) : sum);
      }
  } else {
    const __mmask16 used[2]{first_lanes<__mmask16>(to.columns),
                            first_lanes<__mmask16>(to.columns - 16)};
    for (; stored_ < end; ++stored_, sums += panel_width) {
      store_half(to, stored_, 0, used[0], _mm512_load_ps(sums));
      if (used[1]) store_half(to, stored_, 1, used[1], _mm512_load_ps(sums + 16));
    }
  }
}

constexpr int64_t line = 64;  // bytes

void Products::fetch(const panels::Ahead& ahead, int64_t units) {
  const int64_t lines = ahead.pieces * ((ahead.bytes + line - 1) / line);
  ahead_ = ahead, ahead_at_ = 0, ahead_lines_per_unit_ = (lines + units - 1) / units;
}
/// Fetches the share of one depth unit.
[[gnu::always_inline]] inline void Products::fetch_lines() {
  for (int64_t i = 0; i < ahead_lines_per_unit_ && ahead_.pieces > 0; ++i) {
    _mm_prefetch(ahead_.data + ahead_at_, _MM_HINT_T1);
    ahead_at_ += line;
    if (ahead_at_ >= ahead_.bytes) ahead_at_ = 0, ahead_.data += ahead_.step, --ahead_.pieces;
  }
}

/// Computes sums = begun + a b, for the first 16 or all 32 rows and columns; sums may be c.
template <bool two_rows, bool two_columns>
void Products::multiply_tiles(int64_t depth_units, const Rows& rows, const uint16_t* b,
                              const Target& to, const Block<const float>& begun,
                              const Block<float>& sums) {
  const uint16_t* a = rows.data;
  const int64_t a_bytes = rows.row * 2;
  constexpr int64_t row_bytes = 64;
  const int64_t rows_per_unit = (panel_width + depth_units - 1) / depth_units;
  // Prefetches the rows of c at the same time, so that storing them later does not wait for memory.
  const auto* c = static_cast<const char*>(to.c);
  const int64_t c_bytes = to.stride * (to.bf16 ? 2 : 4), c_rows = sums.data == to.c ? 0 : to.rows;
  const bool wide = !to.bf16;
  // The intrinsics do not say that tiles are read from memory: the packed data must be written
  // first.
  __asm__ volatile("" : : : "memory");
  if (begun.data) {
    _tile_loadd(0, begun.tile(0, 0), begun.row_bytes());
    if constexpr (two_columns) _tile_loadd(1, begun.tile(0, 1), begun.row_bytes());
    if constexpr (two_rows) _tile_loadd(2, begun.tile(1, 0), begun.row_bytes());
    if constexpr (two_rows && two_columns) _tile_loadd(3, begun.tile(1, 1), begun.row_bytes());
  } else {
    _tile_zero(0);
    if constexpr (two_columns) _tile_zero(1);
    if constexpr (two_rows) _tile_zero(2);
    if constexpr (two_rows && two_columns) _tile_zero(3);
  }
  // The panel of b is read once: the hint leaves the first-level cache to the panel of a, which is
  // used many times.
  for (int64_t d = 0; d < depth_units; ++d, a += rows.unit, b += 2 * tile_elements) {
    _tile_stream_loadd(6, b, row_bytes);
    _tile_loadd(4, a, a_bytes);
    if constexpr (two_columns) _tile_stream_loadd(7, b + tile_elements, row_bytes);
    if constexpr (two_rows) _tile_loadd(5, a + rows.tile, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (two_columns) _tile_dpbf16ps(1, 4, 7);
    if constexpr (two_rows) _tile_dpbf16ps(2, 5, 6);
    if constexpr (two_rows && two_columns) _tile_dpbf16ps(3, 5, 7);
    fetch_lines();
    if (stored_ < waiting_.rows) store_rows(rows_per_unit);
    const int64_t row = d * rows_per_unit,
                  end = row + rows_per_unit < c_rows ? row + rows_per_unit : c_rows;
    for (int64_t i = row; i < end; ++i) {
      _mm_prefetch(c + i * c_bytes, _MM_HINT_T1);
      if (wide) _mm_prefetch(c + i * c_bytes + 64, _MM_HINT_T1);
    }
  }
  _tile_stored(0, sums.tile(0, 0), sums.row_bytes());
  if constexpr (two_columns) _tile_stored(1, sums.tile(0, 1), sums.row_bytes());
  if constexpr (two_rows) _tile_stored(2, sums.tile(1, 0), sums.row_bytes());
  if constexpr (two_rows && two_columns) _tile_stored(3, sums.tile(1, 1), sums.row_bytes());
}

void Products::multiply(int64_t depth, const Rows& a, const uint16_t* b, const Target& to) {
  const int64_t units = (depth + depth_unit - 1) / depth_unit;
  const bool in_c = to.near && !to.bf16 && !to.bias && to.rows % 16 == 0 && to.columns % 16 == 0;
  const Block<float> c{static_cast<float*>(to.c), to.stride};
  const Block<float> sums = in_c ? c : Block<float>{sums_[current_]};
  const Block<const float> begun =
      in_c && to.accumulate ? Block<const float>{c.data, c.stride} : Block<const float>{to.begun};
  const auto multiply_by = [&]<bool two_rows>() {
    if (to.columns > 16) multiply_tiles<two_rows, true>(units, a, b, to, begun, sums);
    else multiply_tiles<two_rows, false>(units, a, b, to, begun, sums);
  };
  if (to.rows > 16) multiply_by.template operator()<true>();
  else multiply_by.template operator()<false>();
  waiting_ = to, stored_ = in_c ? to.rows : 0, current_ = 1 - current_;
}

}  // namespace halftone::simd::amx
