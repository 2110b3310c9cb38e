// Products for grouped convolutions whose groups are too narrow for tiles (one channel in depthwise
// convolutions). Factors and stores are as in product.h, but each thread computes its own place,
// and neighboring threads have neighboring channels, of any group.
#pragma once

#include <halftone/backends/cuda/block.h>
#include <halftone/backends/cuda/conv_factors.h>

namespace halftone::cuda {

/// Returns whether `columns` per group fill so little of a tile that one thread per place is
/// faster.
inline bool is_narrow(const ConvSizes& s, int columns) {
  return s.groups > 1 && columns < tile_edge / 4;
}

/// Rows are pixels: few levels, many places.
template <class A, class B, class Store>
__global__ void narrow_kernel(A a, B b, Store store, ProductSizes sizes, Divisor all_columns,
                              Divisor group_columns) {
  using C = typename A::Value;
  const int64_t count = sizes.elements();
  for (int64_t place = global_thread(); place < count; place += all_threads()) {
    const auto [row, channel] = all_columns.split(place);
    const auto [batch, column] = group_columns.split(channel);
    const typename A::Line left = a.line(batch, row);
    const typename B::Line right = b.line(batch, column);
    C sum = 0;
    for (int64_t k = 0; k < sizes.depth; ++k)
      sum += a.at(left, a.level(k)) * b.at(right, b.level(k));
    store(batch, row, column, sum);
  }
}

template <class A, class B, class Store>
void narrow_product(const Context& context, const A& a, const B& b, const Store& store,
                    const ProductSizes& sizes) {
  if (sizes.elements() == 0) return;
  launch(context, narrow_kernel<A, B, Store>, shape_for(context, sizes.elements()), a, b, store,
         sizes, Divisor(sizes.batches * sizes.columns), Divisor(sizes.columns));
}

/// The depth is pixels: many levels, few places. A lane has one row of all batches. The warps of
/// the block share the levels of a split, which goes to `partial` as in product.h.
template <class A, class B>
__global__ void __launch_bounds__(product_threads)
    narrow_deep_kernel(A a, B b, Tiling tiling, typename A::Value* partial) {
  using C = typename A::Value;
  constexpr int warps = product_threads / warp_lanes;
  __shared__ C of_warps[warps][warp_lanes];
  const ProductSizes& sizes = tiling.sizes;
  const int64_t all_rows = sizes.batches * sizes.rows, tiles = tiling.row_tiles * sizes.columns;
  const int lane = int(threadIdx.x) % warp_lanes, warp = int(threadIdx.x) / warp_lanes;
  for (int64_t work = blockIdx.x; work < tiles * tiling.splits; work += gridDim.x) {
    const int64_t split = work / tiles, column = work % tiles % sizes.columns;
    const int64_t row = work % tiles / sizes.columns * warp_lanes + lane;
    const int64_t first = split * tiling.split_depth, end = first + tiling.split_depth;
    C sum = 0;
    if (row < all_rows) {
      const typename A::Line left = a.line(row / sizes.rows, row % sizes.rows);
      const typename B::Line right = b.line(row / sizes.rows, column);
      for (int64_t k = first + warp; k < (end < sizes.depth ? end : sizes.depth); k += warps)
        sum += a.at(left, a.level(k)) * b.at(right, b.level(k));
    }
    of_warps[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && row < all_rows) {
      for (int other = 1; other < warps; ++other) sum += of_warps[other][lane];
      partial[(split * all_rows + row) * sizes.columns + column] = sum;
    }
    __syncthreads();
  }
}

template <class A, class B, class Store>
void narrow_deep_product(const Context& context, const A& a, const B& b, const Store& store,
                         const ProductSizes& sizes) {
  using C = typename A::Value;
  if (sizes.elements() == 0) return;
  constexpr int64_t least_depth = 1024;
  Tiling tiling{.sizes = sizes, .row_tiles = blocks_for(sizes.batches * sizes.rows, warp_lanes)};
  const int64_t wanted =
      int64_t(context.multiprocessors()) * 8 / (tiling.row_tiles * sizes.columns);
  const int64_t splits = std::clamp<int64_t>(wanted, 1, sizes.depth / least_depth + 1);
  tiling.split_depth = std::max<int64_t>((sizes.depth + splits - 1) / splits, 1);
  tiling.splits = blocks_for(sizes.depth, tiling.split_depth);
  const Tensor partial = scratch(context, {tiling.splits, sizes.elements()}, dtype_of<C>);
  launch(context, narrow_deep_kernel<A, B>,
         {blocks_for(tiling.row_tiles * sizes.columns * tiling.splits, 1), product_threads}, a, b,
         tiling, partial.data<C>());
  launch(context, add_splits_kernel<C, Store>, shape_for(context, sizes.elements()),
         partial.data<C>(), tiling, store);
}

}  // namespace halftone::cuda
