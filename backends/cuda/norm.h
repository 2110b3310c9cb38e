// Shared parts of the normalizations: x_hat = (x - mean) rstd with rstd = 1 / sqrt(variance + eps),
// and the gradient
//   dx = rstd (g - mean(g) - x_hat mean(g x_hat)),   g = dy weight
// in which mean() runs over the elements that were normalized together.
#pragma once

#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/reduction.h>
#include <halftone/backends/cuda/rows.h>
#include <halftone/core/math.h>

namespace halftone::cuda {

/// Returns the sum of (value - mean)^2 over the part of the pack in the row.
template <int size, class C>
__device__ __forceinline__ C squared_distances(const Row<size>& row, int64_t pack, C mean,
                                               const C (&values)[size]) {
  C sum = 0;
#pragma unroll
  for (int i = 0; i < size; ++i) {
    const C distance = row.contains(pack * size + i) ? values[i] - mean : C(0);
    sum += distance * distance;
  }
  return sum;
}

template <class C> struct RowMoments {
  C mean, variance;  // biased
};

/// Computes the moments in two passes over the row. Uncentered: mean 0 and the mean square.
template <class T, int size>
__device__ RowMoments<compute_t<T>> moments_of_row(const T* x, const Row<size>& row, bool aligned,
                                                   bool centred, const Team& team) {
  using C = compute_t<T>;
  const C n = C(row.end - row.begin);
  C mean = 0, sum = 0, values[size];
  if (centred) {
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      load_values(x, row, pack, aligned, values);
#pragma unroll
      for (int i = 0; i < size; ++i) sum += values[i];
    }
    mean = team.sum(sum) / n;
  }
  sum = 0;
  for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
    load_values(x, row, pack, aligned, values);
    sum += squared_distances(row, pack, mean, values);
  }
  return {mean, team.sum(sum) / n};
}

/// Returns a weight or bias in a dtype that kernels over x can read: x's or that of statistics.
inline Tensor readable_weight(Backend& backend, const Tensor& weight, DType x) {
  const DType wide = x == f64 ? f64 : f32;
  return is_or_undefined(weight, x) ? weight : converted(backend, weight, wide);
}

/// Writes two sums per column, of dy x_hat and of dy, as the gradients of weight and bias.
struct StoreWeightGradients {
  Operand dweight, dbias;
  __device__ void operator()(int64_t, int64_t column, const ColumnSums<2, double>& total) const {
    if (dweight.data) store_as<double>(dweight, column, total.of[0]);
    if (dbias.data) store_as<double>(dbias, column, total.of[1]);
  }
};

// Batch norm: channels are the columns of [pixels, channels] in memory. A thread keeps the factors
// of its channels in registers and goes down the pixels.

/// The matrix of pixels and channels, for images in NHWC memory or [n, c].
struct PixelMatrix {
  int64_t count, channels;
  explicit PixelMatrix(const Tensor& x)
      : count(x.size(1) == 0 ? 0 : x.numel() / x.size(1)), channels(x.size(1)) {}
};

/// The elements of one thread: `size` channels from `channel` on, of pixels begin, begin + step ...
struct PixelWalk {
  int64_t channel, begin, end, step;
  __device__ PixelWalk(const ColumnCut& cut, int64_t item, int size) {
    const int lane = int(threadIdx.x) % cut.lanes, line = int(threadIdx.x) / cut.lanes;
    const int64_t per_tile = int64_t(cut.lanes) * size;
    const int64_t tiles = (cut.columns + per_tile - 1) / per_tile;
    channel = item % tiles * per_tile + lane * size;
    begin = item / tiles * cut.rows_per_piece + line;
    end = (item / tiles + 1) * cut.rows_per_piece;
    end = channel >= cut.columns ? 0 : (end < cut.rows ? end : cut.rows);
    step = int64_t(block_threads) / cut.lanes;
  }
};
inline int64_t walks_of(const ColumnCut& cut, int size) {
  return blocks_for(cut.columns, int64_t(cut.lanes) * size) * cut.pieces;
}
/// Makes smaller pieces than reductions do, because nothing is joined.
inline ColumnCut walk_cut(const Context& context, const PixelMatrix& pixels, int size) {
  ColumnCut cut = column_cut(context, pixels.count, pixels.channels, size);
  const int64_t lines = block_threads / cut.lanes;
  const int64_t tiles = blocks_for(cut.columns, int64_t(cut.lanes) * size);
  cut.pieces = std::clamp<int64_t>(int64_t(context.multiprocessors()) * 32 / tiles, 1,
                                   std::max<int64_t>(1, pixels.count / (lines * 4)));
  cut.rows_per_piece = (pixels.count + cut.pieces - 1) / cut.pieces;
  return cut;
}

template <class T, int size>
__device__ __forceinline__ void load_channels(const T* x, int64_t element,
                                              compute_t<T> (&values)[size]) {
  const auto loaded = *reinterpret_cast<const Pack<T, size>*>(x + element);
#pragma unroll
  for (int i = 0; i < size; ++i) values[i] = widen(loaded.values[i]);
}
template <class T, int size>
__device__ __forceinline__ void store_channels(T* y, int64_t element,
                                               const compute_t<T> (&values)[size]) {
  Pack<T, size> out;
#pragma unroll
  for (int i = 0; i < size; ++i) out.values[i] = narrow<T>(values[i]);
  *reinterpret_cast<Pack<T, size>*>(y + element) = out;
}

/// Calls visitor.operator()<size>(): with packs, or with single elements if packs do not fit.
template <class T, class Visitor, class... Rest>
void visit_pack_size(int64_t channels, Visitor&& visitor, const Rest&... tensors) {
  constexpr int size = row_pack<T>;
  if (channels % size == 0 && packs_aligned(size, tensors...)) visitor.template operator()<size>();
  else visitor.template operator()<1>();
}

/// Returns one dtype for all tensors: their common one, or that of statistics if they differ.
template <class... Rest> DType common_dtype(const Tensor& x, const Rest&... tensors) {
  return (is_or_undefined(tensors, x.dtype()) && ...) ? x.dtype() : statistics_of(x, tensors...);
}

}  // namespace halftone::cuda
