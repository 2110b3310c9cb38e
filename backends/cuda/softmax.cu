// Softmax, its logarithm and log(sum(exp)) along rows. A row that fits the registers of its threads
// is read once; a longer one is read again, from the L2 cache.
#include <halftone/backends/cuda/conversion.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/exp_sum.h>

namespace halftone {

namespace cuda {
namespace {

/// Returns the sum over the whole row, which the team reads; each thread gets it.
template <class T, int size>
__device__ ExpSum<compute_t<T>> exp_sum_of(const T* x, const Row<size>& row, const Team& team,
                                           bool aligned) {
  using C = compute_t<T>;
  ExpSum<C> total;
  for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
    C values[size];
    load_values(x, row, pack, aligned, values, -std::numeric_limits<C>::infinity());
    total.add(values);
  }
  total.join(team);
  return total;
}

/// A row with an infinite total (+inf somewhere, or -inf everywhere) has no softmax: NaN.
template <class T, class U>
__global__ void __launch_bounds__(most_row_threads)
    softmax_held_kernel(const T* x, int64_t rows, int64_t n, bool warps, bool aligned,
                        bool logarithm, U* y) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>, packs = held_packs<T>;
  constexpr C lowest = -std::numeric_limits<C>::infinity();
  const Team team(warps);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    C values[packs][size], largest = lowest, sum = 0;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      load_values(x, row, row.first_pack + team.rank + k * team.size, aligned, values[k], lowest);
#pragma unroll
      for (int i = 0; i < size; ++i) largest = Max{}(largest, values[k][i]);
    }
    largest = team.reduce(largest, Max{}, lowest);
#pragma unroll
    for (int k = 0; k < packs; ++k)
#pragma unroll
      for (int i = 0; i < size; ++i) {
        values[k][i] -= largest;
        const C e = math::exp(values[k][i]);
        sum += e;
        if (!logarithm) values[k][i] = e;
      }
    sum = team.sum(sum);
    const C log_sum = logarithm ? math::log(sum) : C(0), factor = C(1) / sum;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
#pragma unroll
      for (int i = 0; i < size; ++i)
        values[k][i] = logarithm ? values[k][i] - log_sum : values[k][i] * factor;
      store_values(y, row, row.first_pack + team.rank + k * team.size, aligned, values[k]);
    }
  }
}

template <class T, class U>
__global__ void __launch_bounds__(most_row_threads)
    softmax_kernel(const T* x, int64_t rows, int64_t n, bool aligned, bool logarithm, U* y) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>;
  const Team team(false);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    const ExpSum<C> total = exp_sum_of(x, row, team, aligned);
    const bool exists = total.sum > C(0) && total.sum <= std::numeric_limits<C>::max();
    const C nan = std::numeric_limits<C>::quiet_NaN();
    const C log_sum = exists ? total.log_sum() : nan, factor = exists ? C(1) / total.sum : nan;
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      C values[size];
      load_values(x, row, pack, aligned, values);
#pragma unroll
      for (int i = 0; i < size; ++i) {
        const C log_e = values[i] - total.shift;
        values[i] = logarithm ? log_e - log_sum : math::exp(log_e) * factor;
      }
      store_values(y, row, pack, aligned, values);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(most_row_threads)
    log_sum_exp_kernel(const T* x, int64_t rows, int64_t n, bool warps, bool aligned, Operand y) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>;
  const Team team(warps);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    const ExpSum<C> total = exp_sum_of(x, row, team, aligned);
    if (team.rank == 0) store_as<C>(y, r, total.shift + total.log_sum());
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::softmax(const Tensor& x, bool logarithm, Tensor& y) {
  if (x.numel() == 0) return;
  const int64_t n = x.rank() == 0 ? 1 : x.size(-1), rows = x.numel() / n;
  const bool done = visit_with_wide(x.dtype(), y.dtype(), [&]<class T, class U>() {
    const bool aligned = packs_aligned(row_pack<T>, x, y);
    const RowLaunch start = row_launch(context_, rows, n, row_pack<T>, held_packs<T>);
    if (start.held)
      launch(context_, softmax_held_kernel<T, U>, start.shape, x.data<T>(), rows, n, start.warps,
             aligned, logarithm, y.data<U>());
    else
      launch(context_, softmax_kernel<T, U>, start.shape, x.data<T>(), rows, n, aligned, logarithm,
             y.data<U>());
  });
  if (done) return;
  const DType wide = statistics_of(x, y);
  ConvertedResult result(*this, y, wide);
  softmax(converted(*this, x, wide), logarithm, result.tensor());
  result.finish();
}

void CudaBackend::log_sum_exp(const Tensor& x, Tensor& y) {
  const int64_t rows = y.numel(), n = rows == 0 ? 0 : x.numel() / rows;
  if (rows == 0) return;
  visit_floating(x.dtype(), "log_sum_exp", [&]<class T>() {
    const RowLaunch start = row_launch(context_, rows, n, row_pack<T>, held_packs<T>);
    launch(context_, log_sum_exp_kernel<T>, start.shape, x.data<T>(), rows, n, start.warps,
           packs_aligned(row_pack<T>, x), Operand(y));
  });
}

}  // namespace halftone
