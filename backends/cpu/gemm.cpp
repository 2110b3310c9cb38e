// The product of two matrices, in the blocks of blocked_product.h.
#include <halftone/backends/cpu/gemm.h>

#include <halftone/backends/cpu/blocked_product.h>

namespace halftone::cpu {

namespace {
constexpr int64_t slice_depth =
    256;  // a panel of b, depth x tile_columns floats, stays near the first-level cache
constexpr int64_t chunk_depth = 2048;  // of a packed at a time
constexpr int64_t most_rows =
    1024;  // a slice of so many packed rows stays in the second-level cache

/// So many products are added up in a row before they join the rest. Of a long row of tiles the
/// sums stay in registers for all of the depth; small products wait for loads and calls anyway.
int64_t chain_of(int64_t m, int64_t n, int64_t depth) {
  if (m <= 4) return 16;
  return m * n <= 64 * 64 ? 32 : depth;
}
}  // namespace

Blocking::Blocking(const simd::Kernels& kernels, int64_t m, int64_t n, int64_t k)
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

void gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
          const Product& to) {
  const simd::Kernels& kernels = simd_kernels();
  // A single row of tiles reads every element of b once: packing it would only move it.
  const bool in_place = m <= kernels.tile_rows && b.element == simd::Element::f32 && b.column == 1;
  blocked_product(
      m, n, k, to,
      [&](int64_t row, int64_t rows, int64_t depth, int64_t count, float* panels) {
        kernels.pack_rows(part(a, row, depth), rows, count, panels);
      },
      [&](int64_t column, int64_t columns, int64_t depth, int64_t count, float* buffer) -> Panel {
        const simd::Matrix source = part(b, depth, column);
        if (in_place && columns == kernels.tile_columns)
          return {static_cast<const float*>(source.data), b.row};
        kernels.pack_columns(source, count, columns, buffer);
        return {buffer, kernels.tile_columns};
      });
}

}  // namespace halftone::cpu
