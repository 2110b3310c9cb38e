// The gradients of layer norm and RMS norm: along rows for x, down the columns for weight and bias.
#include <halftone/backends/cuda/conversion.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/norm.h>

namespace halftone {

namespace cuda {
namespace {

/// The row's statistics; without means it is RMS norm, which subtracts nothing.
template <class C> struct RowScale {
  const C *means, *rstds;
  __device__ C mean(int64_t row) const { return means ? means[row] : C(0); }
};

/// x and dy are kept in their stored dtypes.
template <class T, class U, int packs>
__global__ void __launch_bounds__(most_row_threads)
    layer_norm_backward_held_kernel(const T* x, const U* dy, int64_t rows, int64_t n, bool warps,
                                    bool aligned, RowVector<T> weight, RowScale<compute_t<T>> scale,
                                    T* dx) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>;
  const Team team(warps);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    const int64_t first = row.first_pack + team.rank;
    const C mean = scale.mean(r), rstd = scale.rstds[r];
    Pack<T, size> in[packs];
    Pack<U, size> incoming[packs];
    C w[size], sum = 0, sum_x_hat = 0;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      in[k] = load_pack(x, row, first + k * team.size, aligned, T(0));
      incoming[k] = load_pack(dy, row, first + k * team.size, aligned, U(0));
      weight.load(row, first + k * team.size, 1, w);
#pragma unroll
      for (int i = 0; i < size; ++i) {
        const C g = widen(incoming[k].values[i]) * w[i];
        sum += g, sum_x_hat += g * ((widen(in[k].values[i]) - mean) * rstd);
      }
    }
    const C mean_g = scale.means ? team.sum(sum) / C(n) : C(0);
    const C mean_g_x_hat = team.sum(sum_x_hat) / C(n);
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      const int64_t pack = first + k * team.size;
      if (pack >= row.pack_end) break;
      weight.load(row, pack, 1, w);
      C out[size];
#pragma unroll
      for (int i = 0; i < size; ++i) {
        const C x_hat = (widen(in[k].values[i]) - mean) * rstd;
        out[i] = rstd * (widen(incoming[k].values[i]) * w[i] - mean_g - x_hat * mean_g_x_hat);
      }
      store_values(dx, row, pack, aligned, out);
    }
  }
}

template <class T, class U>
__global__ void __launch_bounds__(most_row_threads)
    layer_norm_backward_kernel(const T* x, const U* dy, int64_t rows, int64_t n, bool aligned,
                               RowVector<T> weight, RowScale<compute_t<T>> scale, T* dx) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>;
  const Team team(false);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    const C mean = scale.mean(r), rstd = scale.rstds[r];
    C in[size], g[size], w[size], sum = 0, sum_x_hat = 0;
    const auto load = [&](int64_t pack) {
      load_values(x, row, pack, aligned, in), load_values(dy, row, pack, aligned, g);
      weight.load(row, pack, 1, w);
#pragma unroll
      for (int i = 0; i < size; ++i) in[i] = (in[i] - mean) * rstd, g[i] *= w[i];
    };
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      load(pack);
#pragma unroll
      for (int i = 0; i < size; ++i) sum += g[i], sum_x_hat += g[i] * in[i];
    }
    const C mean_g = scale.means ? team.sum(sum) / C(n) : C(0);
    const C mean_g_x_hat = team.sum(sum_x_hat) / C(n);
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      load(pack);
#pragma unroll
      for (int i = 0; i < size; ++i) g[i] = rstd * (g[i] - mean_g - in[i] * mean_g_x_hat);
      store_values(dx, row, pack, aligned, g);
    }
  }
}

/// Terms of the columns' sums of dy x_hat and of dy.
template <class T, class U, int size> struct LayerNormTerms {
  const T* x;
  const U* dy;
  int64_t n;
  RowScale<compute_t<T>> scale;
  __device__ LayerNormTerms at(int64_t column) const { return {x + column, dy + column, n, scale}; }
  template <class Result> __device__ void operator()(int64_t row, Result* sums) const {
    const auto in = *reinterpret_cast<const Pack<T, size>*>(x + row * n);
    const auto incoming = *reinterpret_cast<const Pack<U, size>*>(dy + row * n);
    const compute_t<T> mean = scale.mean(row), rstd = scale.rstds[row];
#pragma unroll
    for (int i = 0; i < size; ++i) {
      const compute_t<T> d = widen(incoming.values[i]);
      sums[i].of[0] += d * ((widen(in.values[i]) - mean) * rstd), sums[i].of[1] += d;
    }
  }
};

template <class T, class U>
void input_gradient(const Context& context, const Tensor& x, const Tensor& weight, const Tensor& dy,
                    int64_t rows, int64_t n, const RowScale<compute_t<T>>& scale, Tensor& dx) {
  constexpr int size = row_pack<T>, packs = held_pairs<T>;
  const bool aligned = packs_aligned(size, x, dy, dx);
  const RowVector<T> w(weight, n);
  const RowLaunch start = row_launch(context, rows, n, size, packs);
  if (start.held)
    launch(context, layer_norm_backward_held_kernel<T, U, packs>, start.shape, x.data<T>(),
           dy.data<U>(), rows, n, start.warps, aligned, w, scale, dx.data<T>());
  else
    launch(context, layer_norm_backward_kernel<T, U>, start.shape, x.data<T>(), dy.data<U>(), rows,
           n, aligned, w, scale, dx.data<T>());
}

template <class T, class U, int size>
void weight_gradients(const Context& context, const Tensor& x, const Tensor& dy, int64_t rows,
                      int64_t n, const RowScale<compute_t<T>>& scale, const Tensor& dweight,
                      const Tensor& dbias) {
  reduce_columns<size, ColumnSums<2, compute_t<T>>>(
      context, rows, n, LayerNormTerms<T, U, size>{x.data<T>(), dy.data<U>(), n, scale},
      StoreWeightGradients{Operand(dweight), Operand(dbias)});
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::layer_norm_backward(const Tensor& x, const Tensor& weight_in, const Tensor& mean,
                                      const Tensor& rstd, const Tensor& dy, Tensor& dx,
                                      Tensor& dweight, Tensor& dbias) {
  const int64_t rows = rstd.numel(), n = rows != 0 ? x.numel() / rows : x.size(-1);
  const Tensor weight = readable_weight(*this, weight_in, x.dtype());
  ConvertedResult result(*this, dx, x.dtype());
  const bool done = visit_with_wide(x.dtype(), dy.dtype(), [&]<class T, class U>() {
    using C = compute_t<T>;
    const RowScale<C> scale{mean.defined() ? mean.data<C>() : nullptr, rstd.data<C>()};
    if (dx.defined() && rows > 0)
      input_gradient<T, U>(context_, x, weight, dy, rows, n, scale, result.tensor());
    if (!dweight.defined() && !dbias.defined()) return;
    constexpr int size = row_pack<T>;
    if (n % size == 0 && packs_aligned(size, x, dy))
      weight_gradients<T, U, size>(context_, x, dy, rows, n, scale, dweight, dbias);
    else weight_gradients<T, U, 1>(context_, x, dy, rows, n, scale, dweight, dbias);
  });
  if (done) return result.finish();
  layer_norm_backward(x, weight, mean, rstd, converted(*this, dy, statistics_of(x)), dx, dweight,
                      dbias);
}

}  // namespace halftone
