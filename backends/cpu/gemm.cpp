// Cache blocking and threading of the matrix product, after Goto and van de Geijn (2008). The rows
// of a are packed by all threads together; then each thread takes panels of columns, packs a panel
// of b slice by slice into its first-level cache and multiplies it with all rows at once. The depth
// is never split between threads, so the result does not depend on their number.
#include <halftone/backends/cpu/gemm.h>

#include <algorithm>

#include <omp.h>

#include <halftone/backends/cpu/product_pieces.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone::cpu {

namespace {
constexpr int64_t slice_depth =
    384;  // a panel of b, depth x tile_columns floats, stays near the first-level cache
constexpr int64_t chunk_depth = 2048;  // of a packed at a time
constexpr int64_t most_rows =
    1024;  // a slice of so many packed rows stays in the second-level cache
constexpr int64_t small_product =
    1 << 18;  // multiply-adds below which threads cost more than they bring

/// So many products are added up in a row before they join the rest. Of a long row of tiles the
/// sums stay in registers for all of the depth; small products wait for loads and calls anyway.
int64_t chain_of(int64_t m, int64_t n, int64_t depth) {
  if (m <= 4) return 16;
  return m * n <= 64 * 64 ? 32 : depth;
}

/// How one product is cut.
struct Blocking {
  int64_t tile_m, tile_n, chunk, slice, chain, row_tiles, panels, tiles_per_block, row_blocks;

  Blocking(const simd::Kernels& kernels, int64_t m, int64_t n, int64_t k)
      : tile_m(kernels.tile_rows),
        tile_n(kernels.tile_columns),
        chunk(even_piece(k, chunk_depth, 16)),
        slice(even_piece(std::min(k, chunk), slice_depth, 16)),
        chain(chain_of(m, n, slice)),
        row_tiles(reference::pieces_of(m, tile_m)),
        panels(reference::pieces_of(n, tile_n)) {
    // Rows are cut where they outgrow the cache, or where the panels do not share out evenly.
    const int64_t threads = omp_get_max_threads();
    const bool even = panels % threads == 0 || panels >= 4 * threads;
    const int64_t wanted = std::max(reference::pieces_of(m, most_rows),
                                    even ? 1 : reference::pieces_of(4 * threads, panels));
    tiles_per_block = reference::pieces_of(row_tiles, std::min(wanted, row_tiles));
    row_blocks = reference::pieces_of(row_tiles, tiles_per_block);
  }
};
}  // namespace

void gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
          const Product& to) {
  const simd::Kernels& kernels = simd_kernels();
  const Blocking cut(kernels, m, n, k);
  Workspace<float> a_panels(cut.row_tiles * cut.tile_m * cut.chunk);
  // A single row of tiles reads every element of b once: packing it would only move it.
  const bool b_in_place = cut.row_tiles == 1 && b.element == simd::Element::f32 && b.column == 1;

  /// One panel of columns times one block of rows, over one slice of the depth.
  const auto multiply = [&](int64_t task, int64_t chunk_start, int64_t chunk, int64_t d0,
                            float* panel_buffer) {
    const int64_t p = task % cut.panels, t0 = task / cut.panels * cut.tiles_per_block;
    const int64_t j = p * cut.tile_n, columns = std::min(cut.tile_n, n - j),
                  depth = std::min(cut.slice, chunk - d0);
    const bool in_place = b_in_place && columns == cut.tile_n;
    const simd::Matrix source = part(b, chunk_start + d0, j);
    if (!in_place) kernels.pack_columns(source, depth, columns, panel_buffer);
    const float* panel = in_place ? static_cast<const float*>(source.data) : panel_buffer;
    const bool first = chunk_start + d0 == 0;
    const float* bias = to.bias && first ? to.bias + j : nullptr;
    for (int64_t t = t0; t < std::min(cut.row_tiles, t0 + cut.tiles_per_block); ++t)
      kernels.tile_product(depth, cut.chain, a_panels.data() + (t * chunk + d0) * cut.tile_m, panel,
                           in_place ? b.row : cut.tile_n, std::min(cut.tile_m, m - t * cut.tile_m),
                           columns, bias, to.accumulate || !first,
                           to.c + t * cut.tile_m * to.stride + j, to.stride);
  };

#pragma omp parallel if (to.parallel && m * n * k > small_product)
  {
    Workspace<float> panel(cut.tile_n * cut.slice);
    for (int64_t start = 0; start < k; start += cut.chunk) {
      const int64_t chunk = std::min(cut.chunk, k - start);
#pragma omp for schedule(static)
      for (int64_t t = 0; t < cut.row_tiles; ++t)
        kernels.pack_rows(part(a, t * cut.tile_m, start), std::min(cut.tile_m, m - t * cut.tile_m),
                          chunk, a_panels.data() + t * cut.tile_m * chunk);
      // The static schedule gives a thread the same tiles of c in every slice: no barrier between
      // slices is needed.
      for (int64_t d0 = 0; d0 < chunk; d0 += cut.slice)
#pragma omp for schedule(static) nowait
        for (int64_t task = 0; task < cut.panels * cut.row_blocks; ++task)
          multiply(task, start, chunk, d0, panel.data());
#pragma omp barrier
    }
  }
}

}  // namespace halftone::cpu
