// Cache blocking and threading of the matrix product (Goto and van de Geijn 2008). For each slice of the depth both
// operands are packed by all threads together, then blocks of c are handed out. The depth is never split between
// threads, so the result does not depend on their number.
#include <halftone/backends/cpu/gemm.h>

#include <algorithm>

#include <halftone/backends/cpu/staging.h>

namespace halftone::cpu {

namespace {
constexpr int64_t slice_depth = 256;       // a panel of b, depth x tile_columns floats, stays in the first-level cache
constexpr int64_t most_columns = 3072;     // packed b stays within a few MiB
constexpr int64_t small_product = 1 << 18; // multiply-adds below which threads cost more than they bring

int64_t round_up(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

simd::Matrix part(const simd::Matrix& x, int64_t i, int64_t j) {
  const int64_t size = x.element == simd::Element::f32 ? 4 : 2;
  return {static_cast<const std::byte*>(x.data) + (i * x.row + j * x.column) * size, x.element, x.row, x.column};
}

/// Slices of equal depth, so that the last one is not a remainder.
int64_t depth_of_slices(int64_t k) { return round_up((k + reference::pieces_of(k, slice_depth) - 1) / reference::pieces_of(k, slice_depth), 8); }
}  // namespace

void gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k, const float* bias, float* c,
          bool parallel) {
  const simd::Kernels& kernels = simd_kernels();
  const int64_t tile_m = kernels.tile_rows, tile_n = kernels.tile_columns;
  const int64_t depth = depth_of_slices(k), width = std::min(round_up(n, tile_n), most_columns / tile_n * tile_n);
  Workspace<float> a_panels(round_up(m, tile_m) * depth), b_panels(width * depth);
  const int64_t row_tiles = reference::pieces_of(m, tile_m);
  const int64_t tiles_per_block = std::clamp<int64_t>(row_tiles / 16, 1, 8);
  const int64_t row_blocks = reference::pieces_of(row_tiles, tiles_per_block);
  // Few rows: cut the columns too, or threads would have nothing to share.
  const int64_t panels_per_block = row_blocks >= 8 ? width / tile_n : std::max<int64_t>(1, width / tile_n / 8);

#pragma omp parallel if (parallel && m * n * k > small_product)
  for (int64_t j0 = 0; j0 < n; j0 += width) {
    const int64_t columns = std::min(width, n - j0), panels = reference::pieces_of(columns, tile_n);
    const int64_t column_blocks = reference::pieces_of(panels, panels_per_block);
    for (int64_t d0 = 0; d0 < k; d0 += depth) {
      const int64_t slice = std::min(depth, k - d0);
#pragma omp for schedule(static) nowait
      for (int64_t p = 0; p < panels; ++p)
        kernels.pack_columns(part(b, d0, j0 + p * tile_n), slice, std::min(tile_n, columns - p * tile_n),
                             b_panels.data() + p * tile_n * slice);
#pragma omp for schedule(static)
      for (int64_t t = 0; t < row_tiles; ++t)
        kernels.pack_rows(part(a, t * tile_m, d0), std::min(tile_m, m - t * tile_m), slice,
                          a_panels.data() + t * tile_m * slice);
#pragma omp for schedule(dynamic)
      for (int64_t block = 0; block < row_blocks * column_blocks; ++block) {
        const int64_t t0 = block % row_blocks * tiles_per_block, p0 = block / row_blocks * panels_per_block;
        for (int64_t p = p0; p < std::min(panels, p0 + panels_per_block); ++p)
          for (int64_t t = t0; t < std::min(row_tiles, t0 + tiles_per_block); ++t) {
            const int64_t i = t * tile_m, j = j0 + p * tile_n;
            kernels.tile_product(slice, a_panels.data() + i * slice, b_panels.data() + p * tile_n * slice,
                                 std::min(tile_m, m - i), std::min(tile_n, n - j),
                                 bias && d0 == 0 ? bias + j : nullptr, d0 > 0, c + i * n + j, n);
          }
      }
    }
  }
}

}  // namespace halftone::cpu
