// The two products of attention, for a block of 64 queries and 64 keys at a time: rows of a head
// with rows of another (scores), and weights with rows of a head (results). f64 and f32 are
// multiplied directly (tiles.h); f16 and bf16 with tensor cores, 16 x 16 x 16 at a time
// (nvcuda::wmma), summed in f32. The layout of a tensor core's sums is unspecified, so they go
// through shared memory to the threads' places (Sums).
#pragma once

#include <mma.h>

#include <halftone/backends/cuda/attention.h>

namespace halftone::cuda::attention {

/// Rows first .. end - 1 of a head.
template <class T> struct HeadRows {
  const T* data;
  int64_t step, first, end;

  __device__ HeadRows(const Heads<const T>& x, int64_t head, int64_t begin, int64_t stop)
      : data(x.row(head, 0)), step(x.row_step), first(begin), end(stop) {}
  __device__ MatrixFactor<const T> lines() const { return {data, 0, step, 1}; }
  __device__ MatrixFactor<const T> levels() const { return {data, 0, 1, step}; }
};

/// 64 x 64 short floats for tensor cores. Rows are padded, so that 8 of them use all banks.
template <class T> struct ShortTile {
  using Element = std::conditional_t<std::is_same_v<T, Float16>, __half, __nv_bfloat16>;
  static constexpr int width = tile_edge + 8;
  Element of[tile_edge][width];

  /// Loads columns first_column .. columns - 1, at most 64; missing elements are 0.
  __device__ void load(const HeadRows<T>& rows, int64_t first_column, int64_t columns) {
    using Line = Pack<uint16_t, 8>;
    const bool aligned =
        reinterpret_cast<uintptr_t>(rows.data + first_column) % sizeof(Line) == 0 &&
        rows.step % Line::size == 0;
#pragma unroll 1
    for (int place = int(threadIdx.x); place < tile_edge * tile_edge / Line::size;
         place += product_threads) {
      const int i = place / (tile_edge / Line::size), c = place % (tile_edge / Line::size) * 8;
      const int64_t row = rows.first + i, column = first_column + c;
      Line line{};
      if (row < rows.end) {
        const T* const from = rows.data + row * rows.step + column;
        if (aligned && column + Line::size <= columns) line = *reinterpret_cast<const Line*>(from);
        else
          for (int k = 0; k < Line::size; ++k)
            if (column + k < columns) line.values[k] = from[k].bits;
      }
      *reinterpret_cast<Line*>(&of[i][c]) = line;
    }
  }
};

/// The 16 x 32 places of one warp in 64 x 64 sums.
template <class T> class WarpSums {
  using Element = typename ShortTile<T>::Element;
  template <class Use, class Layout>
  using Factor = nvcuda::wmma::fragment<Use, 16, 16, 16, Element, Layout>;
  using RowMajor = nvcuda::wmma::row_major;
  using ColumnMajor = nvcuda::wmma::col_major;
  using Left = nvcuda::wmma::matrix_a;
  using Right = nvcuda::wmma::matrix_b;

 public:
  __device__ WarpSums() {
    for (auto& tile : tiles_) nvcuda::wmma::fill_fragment(tile, 0.0f);
  }
  /// Adds a b^T over columns 0 .. depth - 1 of both.
  __device__ void add_rows(const ShortTile<T>& a, const ShortTile<T>& b, int depth) {
    for (int k = 0; k < depth; k += 16) {
      Factor<Left, RowMajor> left;
      nvcuda::wmma::load_matrix_sync(left, &a.of[row()][k], a.width);
      for (int t = 0; t < 2; ++t) {
        Factor<Right, ColumnMajor> right;
        nvcuda::wmma::load_matrix_sync(right, &b.of[column(t)][k], b.width);
        nvcuda::wmma::mma_sync(tiles_[t], left, right, tiles_[t]);
      }
    }
  }
  /// Adds a^T b over all 64 rows.
  __device__ void add_columns(const ShortTile<T>& a, const ShortTile<T>& b) {
    for (int k = 0; k < tile_edge; k += 16) {
      Factor<Left, ColumnMajor> left;
      nvcuda::wmma::load_matrix_sync(left, &a.of[k][row()], a.width);
      for (int t = 0; t < 2; ++t) {
        Factor<Right, RowMajor> right;
        nvcuda::wmma::load_matrix_sync(right, &b.of[k][column(t)], b.width);
        nvcuda::wmma::mma_sync(tiles_[t], left, right, tiles_[t]);
      }
    }
  }
  __device__ void store(WeightStrip<float>& to) const {
    for (int t = 0; t < 2; ++t)
      nvcuda::wmma::store_matrix_sync(&to.values[row()][column(t)], tiles_[t], to.width,
                                      nvcuda::wmma::mem_row_major);
  }

 private:
  static __device__ int warp() { return int(threadIdx.x) / warp_lanes; }
  static __device__ int row() { return warp() / 2 * 16; }
  static __device__ int column(int t) { return warp() % 2 * 32 + t * 16; }

  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> tiles_[2];
};

/// Shared memory of a kernel, and the products in it. All threads of the block must call them.
/// Values written with put() just before are visible, and may be overwritten just after.
/// short_weights: weights and gradients of scores are rounded to T for tensor cores; otherwise they
/// stay C, and tensor cores compute only scores.
template <class T, int across, bool short_weights> struct Products {
  using C = compute_t<T>;
  using Result = ResultTile<C, across>;
  static constexpr bool short_scores = is_short_float<T>;
  static_assert(short_scores || !short_weights);

  struct OfT {
    ShortTile<T> a, b;
  };
  struct alignas(32) Nothing {};
  union alignas(32) {
    WeightStrip<C> weights;  // also holds masks
    std::conditional_t<short_weights, ShortTile<T>, Nothing> rounded;
  };
  union alignas(32) {
    Strips<ScoreTile<C>> scores;
    Strips<Result> results;
    std::conditional_t<short_scores, OfT, Nothing> tiles;
    std::conditional_t<short_scores, WeightStrip<C>, Nothing> sums;
  };

  /// Adds a b^T over `depth` columns.
  __device__ void add_scores(const HeadRows<T>& a, const HeadRows<T>& b, int64_t depth,
                             Sums<ScoreTile<C>>& to) {
    if constexpr (short_scores) {
      WarpSums<T> own;
      for (int64_t d = 0; d < depth; d += tile_edge) {
        tiles.a.load(a, d, depth), tiles.b.load(b, d, depth);
        __syncthreads();
        own.add_rows(tiles.a, tiles.b, int(depth - d < tile_edge ? depth - d : tile_edge));
        __syncthreads();
      }
      hand_out(own, to, 0);
    } else {
      const MatrixFactor<const T> left = a.lines(), right = b.lines();
      RowCarrier<ScoreTile<C>, MatrixFactor<const T>> rows(left, 0, a.first, a.end);
      ColumnCarrier<ScoreTile<C>, MatrixFactor<const T>> columns(right, 0, b.first, b.end);
      add_product<ScoreTile<C>>(rows, columns, 0, depth, scores, to);
    }
  }

  template <bool keys_down> __device__ void put(const Patch<C, keys_down>& patch) {
    if constexpr (short_weights) {
      using Base = Sums<ScoreTile<C>>;
#pragma unroll
      for (int j = 0; j < square; ++j) {
        Pack<uint16_t, square> line;
#pragma unroll
        for (int i = 0; i < square; ++i) line.values[i] = narrow<T>(patch.of[i][j]).bits;
        *reinterpret_cast<Pack<uint16_t, square>*>(&rounded.of[Base::column(j)][Base::row(0)]) =
            line;
      }
    } else {
      patch.put(weights);
    }
  }

  /// Adds the transpose of the values of put(), times rows of a head (its levels, at most 64) from
  /// column `first_column` on.
  __device__ void add_weighted(const HeadRows<T>& b, int64_t first_column, int64_t columns,
                               Sums<Result>& to) {
    if constexpr (short_weights) {
#pragma unroll
      for (int slice = 0; slice < across; ++slice) {
        tiles.b.load(b, first_column + slice * tile_edge, columns);
        __syncthreads();
        WarpSums<T> own;
        own.add_columns(rounded, tiles.b);
        __syncthreads();
        hand_out(own, to, slice * square);
      }
    } else {
      const MatrixFactor<const T> factor = b.levels();
      ColumnCarrier<Result, MatrixFactor<const T>> carrier(factor, 0, first_column, columns);
      attention::add_weighted<Result>(weights, carrier, b.first, b.end, results.b, to);
    }
  }

  /// Stores rows of a head, up to the end of the tensor: row first + i, column first_column + c.
  __device__ void store_rows(const Sums<Result>& from, const Heads<T>& y, int64_t head,
                             int64_t first, int64_t end, int64_t first_column, int64_t columns) {
    store_sums(from, results, [&](int i, int c, C sum) {
      if (first + i < end && first_column + c < columns)
        y.row(head, first + i)[first_column + c] = narrow<T>(sum);
    });
  }

 private:
  /// Distributes the sums of the warps to the threads, in columns from `column` on.
  template <class Tile>
  __device__ void hand_out(const WarpSums<T>& own, Sums<Tile>& to, int column) {
    own.store(sums);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < square; ++i) {
      const auto line = *reinterpret_cast<const Pack<C, square>*>(
          &sums.values[Sums<Tile>::row(i)][Sums<Tile>::column(0)]);
#pragma unroll
      for (int j = 0; j < square; ++j) to.of[i][column + j] += line.values[j];
    }
    __syncthreads();
  }
};

/// Gradients of scores are rounded to bf16, which has the range of f32; in f16 they could overflow.
template <class T> inline constexpr bool short_gradients = std::is_same_v<T, BFloat16>;

}  // namespace halftone::cuda::attention
