// Shared parts of the normalizations: x_hat = (x - mean) rstd with rstd = 1 / sqrt(variance + eps),
// and the gradient
//   dx = rstd (g - mean(g) - x_hat mean(g x_hat)),   g = dy weight
// in which mean() runs over the elements that were normalized together.
#pragma once

#include <halftone/backends/cuda/columns.h>
#include <halftone/backends/cuda/conversion.h>
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

}  // namespace halftone::cuda
