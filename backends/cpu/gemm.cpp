// The product of two matrices, in the blocks of gemm_blocking.h.
#include <halftone/backends/cpu/gemm.h>

#include <halftone/backends/cpu/gemm_blocking.h>

namespace halftone::cpu {

void gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
          const Product& to) {
  const simd::Kernels& kernels = simd_kernels();
  // A single row of tiles reads every element of b once, so packing b would only copy it.
  const bool in_place = m <= kernels.tile_rows && b.element == simd::Element::f32 && b.column == 1;
  blocked_product(
      m, n, k, to,
      [&](int64_t row, int64_t rows, int64_t depth, int64_t count, float* panels) {
        kernels.pack_rows(part(a, row, depth), rows, count, panels);
      },
      [&](int64_t column, int64_t columns, int64_t depth, int64_t count, float* buffer) -> Panels {
        const simd::Matrix source = part(b, depth, column);
        if (in_place && columns == kernels.tile_columns)
          return {static_cast<const float*>(source.data), b.row};
        kernels.pack_columns(source, count, columns, buffer);
        return {buffer, kernels.tile_columns};
      });
}

}  // namespace halftone::cpu
