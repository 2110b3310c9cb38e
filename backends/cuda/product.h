// Whole matrix products from the tiles of tiles.h: c(g, i, j) = sum over k of a(g, i, k) b(g, k, j)
// for batches g; factors and store define the matrices. If there are too few tiles for the device,
// the depth is split: partial sums go to scratch memory and a second kernel adds them in a fixed
// order, so results repeat.
#pragma once

#include <halftone/backends/cuda/tiles.h>

namespace halftone::cuda {

struct ProductSizes {
  int64_t batches, rows, columns, depth;
  HT_HD int64_t elements() const { return batches * rows * columns; }
};

/// The cut of a product into tiles, and of the depth into splits of `split_depth` levels.
struct Tiling {
  ProductSizes sizes;
  int64_t row_tiles = 1, column_tiles = 1, splits = 1, split_depth = 1;
  HT_HD int64_t tiles() const { return sizes.batches * row_tiles * column_tiles; }
};

/// Calls store(batch, row, column, sum) for each place; with several splits, writes partial[split]
/// instead.
template <class Shape, class A, class B, class Store>
__global__ void __launch_bounds__(product_threads)
    product_kernel(A a, B b, Store store, Tiling tiling, typename Shape::C* partial) {
  using C = typename Shape::C;
  __shared__ Strips<Shape> strips;
  const ProductSizes& sizes = tiling.sizes;
  const int64_t tiles = tiling.tiles();
  for (int64_t work = blockIdx.x; work < tiles * tiling.splits; work += gridDim.x) {
    const int64_t split = work / tiles, tile = work % tiles;
    const int64_t column = tile % tiling.column_tiles * Shape::columns;
    const int64_t row = tile / tiling.column_tiles % tiling.row_tiles * Shape::rows;
    const int64_t batch = tile / tiling.column_tiles / tiling.row_tiles;
    const int64_t first = split * tiling.split_depth, end = first + tiling.split_depth;
    Sums<Shape> sums;
    RowCarrier<Shape, A> left(a, batch, row, sizes.rows);
    ColumnCarrier<Shape, B> right(b, batch, column, sizes.columns);
    add_product(left, right, first, end < sizes.depth ? end : sizes.depth, strips, sums);
    store_sums(sums, strips, [&](int i, int j, C sum) {
      const int64_t y = row + i, x = column + j;
      if (y >= sizes.rows || x >= sizes.columns) return;
      if (tiling.splits == 1) return store(batch, y, x, sum);
      partial[((split * sizes.batches + batch) * sizes.rows + y) * sizes.columns + x] = sum;
    });
  }
}

template <class C, class Store>
__global__ void add_splits_kernel(const C* partial, Tiling tiling, Store store) {
  const ProductSizes& sizes = tiling.sizes;
  const int64_t count = sizes.elements();
  for (int64_t place = global_thread(); place < count; place += all_threads()) {
    C sum = 0;
    for (int64_t split = 0; split < tiling.splits; ++split) sum += partial[split * count + place];
    store(place / sizes.columns / sizes.rows, place / sizes.columns % sizes.rows,
          place % sizes.columns, sum);
  }
}

/// Splits only if there are fewer tiles than the device computes at once, two blocks per
/// multiprocessor.
template <class Shape> Tiling tiling_of(const Context& context, const ProductSizes& sizes) {
  constexpr int64_t unit = Shape::depth;
  constexpr int64_t least_depth = 256;  // of a split: below this, adding up costs more than it
                                        // saves
  Tiling tiling{.sizes = sizes,
                .row_tiles = blocks_for(sizes.rows, Shape::rows),
                .column_tiles = blocks_for(sizes.columns, Shape::columns)};
  const int64_t wanted = int64_t(context.multiprocessors()) * 2 / tiling.tiles();
  const int64_t splits =
      std::clamp<int64_t>(wanted, 1, std::max<int64_t>(sizes.depth / least_depth, 1));
  tiling.split_depth = std::max((sizes.depth / splits + unit) / unit * unit, unit);
  tiling.splits = blocks_for(sizes.depth, tiling.split_depth);
  return tiling;
}

template <class Shape, class A, class B, class Store>
void run_product(const Context& context, const A& a, const B& b, const Store& store,
                 const ProductSizes& sizes) {
  using C = typename Shape::C;
  const Tiling tiling = tiling_of<Shape>(context, sizes);
  Tensor partial;
  if (tiling.splits > 1) partial = scratch(context, {tiling.splits, sizes.elements()}, dtype_of<C>);
  C* const partials = partial.defined() ? partial.data<C>() : nullptr;
  launch(context, product_kernel<Shape, A, B, Store>,
         {blocks_for(tiling.tiles() * tiling.splits, 1), product_threads}, a, b, store, tiling,
         partials);
  if (partials)
    launch(context, add_splits_kernel<C, Store>, shape_for(context, sizes.elements()), partials,
           tiling, store);
}

/// Computes c = a b and passes it to `store`; uses large tiles if there are enough of them. Does
/// nothing for an empty result.
template <class A, class B, class Store>
void product(const Context& context, const A& a, const B& b, const Store& store,
             const ProductSizes& sizes) {
  using C = typename A::Value;
  if (sizes.elements() == 0) return;
  if constexpr (sizeof(C) == 4) {
    using Large = TileShape<C, 2, 2>;
    const int64_t tiles = sizes.batches * blocks_for(sizes.rows, Large::rows) *
                          blocks_for(sizes.columns, Large::columns);
    const bool full = sizes.rows > tile_edge && sizes.columns > tile_edge;
    if (full && tiles >= context.multiprocessors())
      return run_product<Large>(context, a, b, store, sizes);
  }
  run_product<TileShape<C, 1, 1>>(context, a, b, store, sizes);
}

}  // namespace halftone::cuda
