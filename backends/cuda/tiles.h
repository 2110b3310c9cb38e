// Products of matrices, a tile at a time, shared by matrix products, convolutions and attention. A
// block of 16 x 16 threads computes a tile of rows x columns. Strips of both factors, a few levels
// of the depth at a time, pass through shared memory. Each thread keeps the sums of 4 x 4 places
// (or several such squares, 64 apart) in registers.
//
// A factor locates its elements. Its lines are rows of the left matrix or columns of the right one;
// its levels are the positions along the depth that the product sums over:
//   using Value                         the type of the computation
//   Line line(int64_t batch, int64_t i) const
//   Level level(int64_t k) const
//   Value at(const Line&, const Level&) const
//   bool along_depth() const            neighbors in memory are levels, not lines
#pragma once

#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/values.h>

namespace halftone::cuda {

inline constexpr int tile_edge = 64, square = 4, product_threads = 256, thread_rows = 16;

/// A tile of down x across squares per thread, computed with C.
template <class C_, int down_, int across_> struct TileShape {
  using C = C_;
  static constexpr int down = down_, across = across_;
  static constexpr int rows = down * tile_edge, columns = across * tile_edge;
  /// Levels of a strip: few enough to keep a thread's registers small.
  static constexpr int depth = sizeof(C) == 8 || down * across > 1 ? 8 : 16;
};

/// [depth][lines] in shared memory. Rows are padded, so that threads that write neighboring depths
/// use different banks.
template <class C, int lines, int depth> struct alignas(4 * sizeof(C)) Strip {
  static constexpr int width = lines + 4;
  C values[depth][width];
};

/// Elements of a matrix in memory, line by line.
template <class T> struct MatrixFactor {
  using Value = compute_t<std::remove_const_t<T>>;
  using Line = const T*;
  using Level = int64_t;
  const T* data;
  int64_t batch_step, line_step, level_step;

  __device__ Line line(int64_t batch, int64_t i) const {
    return data + batch * batch_step + i * line_step;
  }
  __device__ Level level(int64_t k) const { return k * level_step; }
  __device__ Value at(Line line, Level level) const { return widen(line[level]); }
  __device__ bool along_depth() const { return level_step <= line_step; }
};

/// The elements that one thread moves from memory into strips: it loads the next strip while the
/// last one is used.
template <class F, int lines, int depth> class Carrier {
 public:
  using C = typename F::Value;
  static constexpr int count = lines * depth / product_threads;
  static_assert(count * product_threads == lines * depth);

  /// Takes lines first .. end - 1, at most `lines` of them; the others are 0.
  __device__ Carrier(const F& factor, int64_t batch, int64_t first, int64_t end)
      : factor_(factor), along_depth_(factor.along_depth()) {
#pragma unroll
    for (int e = 0; e < count; ++e) {
      const int64_t i = first + line_of(e);
      inside_[e] = i < end;
      lines_[e] = factor.line(batch, inside_[e] ? i : first);
    }
  }
  __device__ void fetch(int64_t first, int64_t end) {
#pragma unroll
    for (int e = 0; e < count; ++e) {
      const int64_t k = first + level_of(e);
      values_[e] = inside_[e] && k < end ? factor_.at(lines_[e], factor_.level(k)) : C(0);
    }
  }
  __device__ void put(Strip<C, lines, depth>& strip) const {
#pragma unroll
    for (int e = 0; e < count; ++e) strip.values[level_of(e)][line_of(e)] = values_[e];
  }

 private:
  __device__ int line_of(int e) const {
    const int place = e * product_threads + int(threadIdx.x);
    return along_depth_ ? place / depth : place % lines;
  }
  __device__ int level_of(int e) const {
    const int place = e * product_threads + int(threadIdx.x);
    return along_depth_ ? place % depth : place / lines;
  }

  const F& factor_;
  bool along_depth_;
  bool inside_[count];
  typename F::Line lines_[count];
  C values_[count];
};

/// The sums of one thread.
template <class Shape> struct Sums {
  using C = typename Shape::C;
  static constexpr int height = Shape::down * square, width = Shape::across * square;
  C of[height][width];

  __device__ Sums() { clear(); }
  __device__ void clear() {
#pragma unroll
    for (int i = 0; i < height; ++i)
#pragma unroll
      for (int j = 0; j < width; ++j) of[i][j] = 0;
  }
  /// Returns the tile's row (or column) for a thread's i-th one.
  static __device__ int row(int i) {
    return i / square * tile_edge + int(threadIdx.x) / 16 * square + i % square;
  }
  static __device__ int column(int j) {
    return j / square * tile_edge + int(threadIdx.x) % 16 * square + j % square;
  }
  /// Adds a b over `depth` levels of strips from a and b on.
  template <int depth> __device__ void add(const C* a, int a_step, const C* b, int b_step) {
    using Values = Pack<C, square>;
#pragma unroll
    for (int k = 0; k < depth; ++k) {
      Values left[Shape::down], right[Shape::across];
#pragma unroll
      for (int s = 0; s < Shape::down; ++s)
        left[s] = *reinterpret_cast<const Values*>(a + k * a_step + row(s * square));
#pragma unroll
      for (int s = 0; s < Shape::across; ++s)
        right[s] = *reinterpret_cast<const Values*>(b + k * b_step + column(s * square));
#pragma unroll
      for (int i = 0; i < height; ++i)
#pragma unroll
        for (int j = 0; j < width; ++j)
          of[i][j] += left[i / square].values[i % square] * right[j / square].values[j % square];
    }
  }
};

/// A strip of each factor; afterwards the output buffer of the sums, 16 rows at a time.
template <class Shape> union Strips {
  using C = typename Shape::C;
  struct {
    Strip<C, Shape::rows, Shape::depth> a;
    Strip<C, Shape::columns, Shape::depth> b;
  };
  Strip<C, Shape::columns, thread_rows> out;
};
template <class Shape, class F> using RowCarrier = Carrier<F, Shape::rows, Shape::depth>;
template <class Shape, class F> using ColumnCarrier = Carrier<F, Shape::columns, Shape::depth>;

/// Computes sums += a b over levels first .. end - 1. All threads of the block must call it. The
/// strips may be overwritten right after the call.
template <class Shape, class A, class B>
__device__ void add_product(A& a, B& b, int64_t first, int64_t end, Strips<Shape>& strips,
                            Sums<Shape>& sums) {
  if (first >= end) return;
  a.fetch(first, end), b.fetch(first, end);
  for (int64_t k = first; k < end; k += Shape::depth) {
    a.put(strips.a), b.put(strips.b);
    __syncthreads();
    if (k + Shape::depth < end) a.fetch(k + Shape::depth, end), b.fetch(k + Shape::depth, end);
    sums.template add<Shape::depth>(strips.a.values[0], strips.a.width, strips.b.values[0],
                                    strips.b.width);
    __syncthreads();
  }
}

/// Calls store(row, column, sum) for every place of the tile; neighboring threads get neighboring
/// columns. All threads of the block must call it.
template <class Shape, class Store>
__device__ void store_sums(const Sums<Shape>& sums, Strips<Shape>& strips, const Store& store) {
  using C = typename Shape::C;
#pragma unroll 1
  for (int i = 0; i < sums.height; ++i) {
    Pack<C, square> row[Shape::across];
#pragma unroll
    for (int other = 0; other < sums.height; ++other)  // registers cannot be indexed
#pragma unroll
      for (int j = 0; j < sums.width; ++j)
        if (other == i) row[j / square].values[j % square] = sums.of[other][j];
#pragma unroll
    for (int s = 0; s < Shape::across; ++s)
      *reinterpret_cast<Pack<C, square>*>(
          &strips.out.values[threadIdx.x / 16][sums.column(s * square)]) = row[s];
    __syncthreads();
#pragma unroll 1
    for (int place = int(threadIdx.x); place < thread_rows * Shape::columns;
         place += product_threads) {
      const int y = place / Shape::columns, x = place % Shape::columns;
      store(i / square * tile_edge + y * square + i % square, x, strips.out.values[y][x]);
    }
    __syncthreads();
  }
}

// Whole matrix products from these tiles: c(g, i, j) = sum over k of a(g, i, k) b(g, k, j)
// for batches g; factors and store define the matrices. If there are too few tiles for the device,
// the depth is split: partial sums go to scratch memory and a second kernel adds them in a fixed
// order, so results repeat.

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
