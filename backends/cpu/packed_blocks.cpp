// The loops over tiles. A panel of b stays in the first-level cache while all rows are multiplied.
#include <halftone/backends/cpu/packed_blocks.h>

namespace halftone::cpu {

void FloatBlocks::multiply(const float* a, const float* b, const BlockProduct& to) {
  const simd::Kernels& kernels = simd_kernels();
  const int64_t rows = kernels.tile_rows, columns = kernels.tile_columns;
  for (int64_t j = 0; j < to.n; j += columns)
    for (int64_t i = 0; i < to.m; i += rows)
      kernels.tile_product(to.k, to.chain, a + i * to.k, b + j * to.packed_depth, columns,
                           std::min(rows, to.m - i), std::min(columns, to.n - j), nullptr,
                           to.accumulate, to.c + i * to.stride + j, to.stride);
}

template <class Products>
void Bf16Blocks<Products>::multiply(const uint16_t* a, const uint16_t* b, const BlockProduct& to) {
  constexpr int64_t width = simd::panels::panel_width;
  const int64_t depth = units(to.k), b_depth = units(to.packed_depth);
  Products products;
  for (int64_t j = 0; j < to.n; j += width)
    for (int64_t i = 0; i < to.m; i += width) {
      float* c = to.c + i * to.stride + j;
      products.multiply(to.k, {.data = a + i * depth}, b + j * b_depth,
                        {.c = c,
                         .bf16 = false,
                         .stride = to.stride,
                         .rows = std::min(width, to.m - i),
                         .columns = std::min(width, to.n - j),
                         .accumulate = to.accumulate,
                         .near = true});
    }
}
template class Bf16Blocks<simd::panels::Products>;
template class Bf16Blocks<simd::amx::Products>;

}  // namespace halftone::cpu
