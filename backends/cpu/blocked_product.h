// Cache blocking and threading of the matrix product c[m, n] = a b, after Goto and van de Geijn
// (2008). The rows of a are packed by all threads together; then each thread takes panels of
// columns, packs a panel of b slice by slice into its first-level cache and multiplies it with all
// rows at once. The depth is never split between threads, so the result does not depend on their
// number. Where the operands come from is the caller's business.
#pragma once

#include <algorithm>

#include <omp.h>

#include <halftone/backends/cpu/gemm.h>
#include <halftone/backends/cpu/product_pieces.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone::cpu {

/// How one product is cut.
struct Blocking {
  int64_t tile_m, tile_n, chunk, slice, chain, row_tiles, panels, tiles_per_block, row_blocks;

  Blocking(const simd::Kernels& kernels, int64_t m, int64_t n, int64_t k);
};

/// A panel of b: packed, or where it lies.
struct Panel {
  const float* data;
  int64_t step;  // between depths
};

/// pack_rows(first row, rows, depth, count, panels) packs `count` depths of rows of a from a depth
/// on; panel(first column, columns, depth, count, buffer) returns those of b, packed into the
/// buffer or in place.
template <class PackRows, class PanelOf>
void blocked_product(int64_t m, int64_t n, int64_t k, const Product& to, const PackRows& pack_rows,
                     const PanelOf& panel_of) {
  constexpr int64_t small_product =
      1 << 18;  // multiply-adds below which threads cost more than they bring
  const simd::Kernels& kernels = simd_kernels();
  const Blocking cut(kernels, m, n, k);
  Workspace<float> a_panels(cut.row_tiles * cut.tile_m * cut.chunk);

  /// One panel of columns times one block of rows, over one slice of the depth.
  const auto multiply = [&](int64_t task, int64_t chunk_start, int64_t chunk, int64_t d0,
                            float* buffer) {
    const int64_t p = task % cut.panels, t0 = task / cut.panels * cut.tiles_per_block;
    const int64_t j = p * cut.tile_n, columns = std::min(cut.tile_n, n - j),
                  depth = std::min(cut.slice, chunk - d0);
    const Panel panel = panel_of(j, columns, chunk_start + d0, depth, buffer);
    const bool first = chunk_start + d0 == 0;
    const float* bias = to.bias && first ? to.bias + j : nullptr;
    for (int64_t t = t0; t < std::min(cut.row_tiles, t0 + cut.tiles_per_block); ++t)
      kernels.tile_product(depth, cut.chain, a_panels.data() + (t * chunk + d0) * cut.tile_m,
                           panel.data, panel.step, std::min(cut.tile_m, m - t * cut.tile_m),
                           columns, bias, to.accumulate || !first,
                           to.c + t * cut.tile_m * to.stride + j, to.stride);
  };

#pragma omp parallel if (to.parallel && m * n * k > small_product)
  {
    Workspace<float> buffer(cut.tile_n * cut.slice);
    for (int64_t start = 0; start < k; start += cut.chunk) {
      const int64_t chunk = std::min(cut.chunk, k - start);
#pragma omp for schedule(static)
      for (int64_t t = 0; t < cut.row_tiles; ++t)
        pack_rows(t * cut.tile_m, std::min(cut.tile_m, m - t * cut.tile_m), start, chunk,
                  a_panels.data() + t * cut.tile_m * chunk);
      // The static schedule gives a thread the same tiles of c in every slice: no barrier between
      // slices is needed.
      for (int64_t d0 = 0; d0 < chunk; d0 += cut.slice)
#pragma omp for schedule(static) nowait
        for (int64_t task = 0; task < cut.panels * cut.row_blocks; ++task)
          multiply(task, start, chunk, d0, buffer.data());
#pragma omp barrier
    }
  }
}

}  // namespace halftone::cpu
