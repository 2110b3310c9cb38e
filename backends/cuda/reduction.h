// Reductions down the columns of a matrix [rows, columns], for any number of quantities at a time:
// bias gradients, gradients of norm weights, batch statistics. Neighboring threads take neighboring
// elements of a row, so that they read whole lines of memory. The rows are cut into pieces, whose
// results a second kernel joins in a fixed order, in double.
#pragma once

#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/values.h>
#include <halftone/core/backend.h>

namespace halftone::cuda {

/// N sums of a column.
template <int N, class C> struct ColumnSums {
  using Wide = ColumnSums<N, double>;
  C of[N];
  static __device__ ColumnSums start() { return ColumnSums{}; }
  template <class D> __device__ void join(const ColumnSums<N, D>& other) {
    for (int k = 0; k < N; ++k) of[k] += C(other.of[k]);
  }
};

/// Mean and sum of squared distances from it (Welford 1962; joined as in Chan et al. 1979).
template <class C> struct Moments {
  using Wide = Moments<double>;
  C count, mean, squares;
  static __device__ Moments start() { return Moments{}; }
  /// share: 1 / count, with the new value counted.
  __device__ void add(C value, C share) {
    const C distance = value - mean;
    count += 1, mean += distance * share;
    squares += distance * (value - mean);
  }
  template <class D> __device__ void join(const Moments<D>& other) {
    if (other.count == D(0)) return;
    const C added = C(other.count), all = count + added, share = added / all;
    const C distance = C(other.mean) - mean;
    mean += distance * share;
    squares += C(other.squares) + distance * distance * count * share;
    count = all;
  }
};

struct ColumnCut {
  int64_t rows, columns, rows_per_piece, pieces;
  int lanes;  // threads side by side, a power of two
};
/// Returns the cut for packs of `size` columns.
inline ColumnCut column_cut(const Context& context, int64_t rows, int64_t columns, int size) {
  ColumnCut cut{rows, columns, rows, 1, 1};
  while (cut.lanes < 32 && cut.lanes * size < columns) cut.lanes *= 2;
  const int64_t lines = block_threads / cut.lanes, tiles = blocks_for(columns, cut.lanes * size);
  // Enough pieces to fill the device, and to give each thread at most about 128 numbers, so that
  // chains of float additions stay short.
  const int64_t wanted =
      std::max(int64_t(context.multiprocessors()) * 8 / tiles, rows / (lines * 128));
  cut.pieces = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, rows / (lines * 8)));
  cut.rows_per_piece = (rows + cut.pieces - 1) / cut.pieces;
  return cut;
}

/// Each thread gets a walker = term.at(column). walker(row, results) adds the elements column ..
/// column + size of a row. finish(piece, column, result) gets the result of a column.
template <int size, class Result, class Term, class Finish>
__global__ void __launch_bounds__(block_threads)
    columns_kernel(ColumnCut cut, Term term, Finish finish) {
  __shared__ Result of_threads[size * block_threads];
  const int thread = int(threadIdx.x), lane = thread % cut.lanes, line = thread / cut.lanes;
  const int lines = int(block_threads) / cut.lanes;
  const int64_t columns_per_tile = int64_t(cut.lanes) * size;
  const int64_t tiles = (cut.columns + columns_per_tile - 1) / columns_per_tile;
  for (int64_t item = blockIdx.x; item < tiles * cut.pieces; item += gridDim.x) {
    const int64_t piece = item / tiles, column = item % tiles * columns_per_tile + lane * size;
    const int64_t begin = piece * cut.rows_per_piece, stop = begin + cut.rows_per_piece;
    const int64_t end = stop < cut.rows ? stop : cut.rows;
    Result results[size];
#pragma unroll
    for (int i = 0; i < size; ++i) results[i] = Result::start();
    if (column < cut.columns) {
      const auto walker = term.at(column);
      for (int64_t row = begin + line; row < end; row += lines) walker(row, results);
    }
#pragma unroll
    for (int i = 0; i < size; ++i) of_threads[i * block_threads + thread] = results[i];
    for (int half = lines / 2; half > 0; half /= 2) {
      __syncthreads();
      if (line < half)
        for (int i = 0; i < size; ++i)
          of_threads[i * block_threads + thread].join(
              of_threads[i * block_threads + thread + half * cut.lanes]);
    }
    if (line == 0 && column < cut.columns)
      for (int i = 0; i < size; ++i)
        finish(piece, column + i, of_threads[i * block_threads + thread]);
    __syncthreads();  // of_threads may be written again
  }
}

template <class Result> struct StorePiece {
  Result* pieces;
  int64_t columns;
  __device__ void operator()(int64_t piece, int64_t column, const Result& result) const {
    pieces[piece * columns + column] = result;
  }
};
/// A matrix of results, to be joined down its columns.
template <class Result> struct JoinRows {
  const Result* results;
  int64_t columns;
  __device__ JoinRows at(int64_t column) const { return {results + column, columns}; }
  template <class Wide> __device__ void operator()(int64_t row, Wide* joined) const {
    joined[0].join(results[row * columns]);
  }
};

template <int size, class Result, class Term, class Finish>
void launch_columns(const Context& context, const ColumnCut& cut, const Term& term,
                    const Finish& finish) {
  const int64_t tiles = blocks_for(cut.columns, int64_t(cut.lanes) * size);
  launch(context, columns_kernel<size, Result, Term, Finish>,
         {blocks_for(tiles * cut.pieces, 1), block_threads}, cut, term, finish);
}

/// `columns` must be a multiple of `size`. finish(0, column, total): total is a Result::Wide.
template <int size, class Result, class Term, class Finish>
void reduce_columns(const Context& context, int64_t rows, int64_t columns, const Term& term,
                    const Finish& finish) {
  if (columns == 0) return;
  const ColumnCut cut = column_cut(context, rows, columns, size);
  const Tensor memory =
      scratch(context, {cut.pieces * columns * int64_t(sizeof(Result))}, DType::u8);
  Result* const pieces = reinterpret_cast<Result*>(memory.raw_data());
  launch_columns<size, Result>(context, cut, term, StorePiece<Result>{pieces, columns});
  ColumnCut last = column_cut(context, cut.pieces, columns, 1);
  last.pieces = 1, last.rows_per_piece = cut.pieces;
  // Joining is slow, so a thread joins few pieces: fewer columns and more lines in a block.
  while (last.lanes > 1 && block_threads / last.lanes * 4 < cut.pieces) last.lanes /= 2;
  launch_columns<1, typename Result::Wide>(context, last, JoinRows<Result>{pieces, columns},
                                           finish);
}

// Shared parts of the two files of reductions.

/// The loops of one reduction: `kept` over x and y, `reduced` over x.
struct ReduceLoops {
  Layout<2> kept;
  Layout<1> reduced;

  ReduceLoops(const Tensor& x, const Tensor& y)
      : kept(part_of(x, y, true), {x.strides(), contiguous_strides(y.shape())}),
        reduced(part_of(x, y, false), {x.strides()}) {}

 private:
  static Shape part_of(const Tensor& x, const Tensor& y, bool kept) {
    Shape shape = x.shape();
    for (int d = 0; d < x.rank(); ++d)
      if ((y.shape()[d] == x.shape()[d]) != kept) shape[d] = 1;
    return shape;
  }
};

/// Reduces with any kind, any strides, any dtypes; y = result / divisor if it is floating.
/// reduction.cu
void reduce_strided(const Context& context, Reduction kind, const ReduceLoops& loops,
                    const Tensor& x, double divisor, Tensor& y);

}  // namespace halftone::cuda
