// Layer norm and, without a mean, RMS norm along rows: y = (x - mean) rstd weight + bias. A row
// that fits the registers of its threads is read once; variances are means of squared distances.
#include <halftone/backends/cuda/conversion.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/norm.h>

namespace halftone {

namespace cuda {
namespace {

template <class T> struct NormParameters {
  RowVector<T> weight, bias;
  compute_t<T>* mean;  // null: RMS norm
  compute_t<T>* rstd;
  compute_t<T> eps;
};

/// Computes (x - mean) rstd weight + bias for one pack.
template <class T, int size>
__device__ __forceinline__ void normalize(const NormParameters<T>& p, const Row<size>& row,
                                          int64_t pack, compute_t<T> mean, compute_t<T> rstd,
                                          compute_t<T> (&values)[size]) {
  compute_t<T> weight[size], bias[size];
  p.weight.load(row, pack, 1, weight), p.bias.load(row, pack, 0, bias);
#pragma unroll
  for (int i = 0; i < size; ++i) values[i] = (values[i] - mean) * rstd * weight[i] + bias[i];
}

template <class T>
__device__ void store_statistics(const NormParameters<T>& p, const Team& team, int64_t row,
                                 compute_t<T> mean, compute_t<T> rstd) {
  if (team.rank != 0) return;
  if (p.mean) p.mean[row] = mean;
  p.rstd[row] = rstd;
}

template <class T, class U>
__global__ void __launch_bounds__(most_row_threads)
    layer_norm_held_kernel(const T* x, int64_t rows, int64_t n, bool warps, bool aligned,
                           NormParameters<T> p, U* y) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>, packs = held_packs<T>;
  const Team team(warps);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    const int64_t first = row.first_pack + team.rank;
    Pack<T, size> in[packs];  // as stored
    C values[size], sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      in[k] = load_pack(x, row, first + k * team.size, aligned, T(0));
#pragma unroll
      for (int i = 0; i < size; ++i) sum += widen(in[k].values[i]);
    }
    const C mean = p.mean ? team.sum(sum) / C(n) : C(0);
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      widen_all(in[k], values);
      squares += squared_distances(row, first + k * team.size, mean, values);
    }
    const C rstd = C(1) / math::sqrt(team.sum(squares) / C(n) + p.eps);
    store_statistics(p, team, r, mean, rstd);
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      const int64_t pack = first + k * team.size;
      if (pack >= row.pack_end) break;
      widen_all(in[k], values);
      normalize(p, row, pack, mean, rstd, values);
      store_values(y, row, pack, aligned, values);
    }
  }
}

template <class T, class U>
__global__ void __launch_bounds__(most_row_threads)
    layer_norm_kernel(const T* x, int64_t rows, int64_t n, bool aligned, NormParameters<T> p,
                      U* y) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>;
  const Team team(false);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    const RowMoments<C> moments = moments_of_row(x, row, aligned, p.mean != nullptr, team);
    const C rstd = C(1) / math::sqrt(moments.variance + p.eps);
    store_statistics(p, team, r, moments.mean, rstd);
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      C values[size];
      load_values(x, row, pack, aligned, values);
      normalize(p, row, pack, moments.mean, rstd, values);
      store_values(y, row, pack, aligned, values);
    }
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::layer_norm(const Tensor& x, const Tensor& weight_in, const Tensor& bias_in,
                             double eps, Tensor& y, Tensor& mean, Tensor& rstd) {
  const int64_t rows = rstd.numel(), n = rows == 0 ? 0 : x.numel() / rows;
  if (rows == 0) return;
  const Tensor weight = readable_weight(*this, weight_in, x.dtype());
  const Tensor bias = readable_weight(*this, bias_in, x.dtype());
  const bool done = visit_with_wide(x.dtype(), y.dtype(), [&]<class T, class U>() {
    using C = compute_t<T>;
    const NormParameters<T> p{RowVector<T>(weight, n), RowVector<T>(bias, n),
                              mean.defined() ? mean.data<C>() : nullptr, rstd.data<C>(), C(eps)};
    const bool aligned = packs_aligned(row_pack<T>, x, y);
    const RowLaunch start = row_launch(context_, rows, n, row_pack<T>, held_packs<T>);
    if (start.held)
      launch(context_, layer_norm_held_kernel<T, U>, start.shape, x.data<T>(), rows, n, start.warps,
             aligned, p, y.data<U>());
    else
      launch(context_, layer_norm_kernel<T, U>, start.shape, x.data<T>(), rows, n, aligned, p,
             y.data<U>());
  });
  if (done) return;
  ConvertedResult result(*this, y, statistics_of(x));
  layer_norm(x, weight, bias, eps, result.tensor(), mean, rstd);
  result.finish();
}

}  // namespace halftone
