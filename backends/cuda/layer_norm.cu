// Layer norm and, without a mean, RMS norm along rows, also of a sum: y = (x - mean) rstd weight +
// bias. A row that fits the registers of its threads is read once; variances are means of squared
// distances.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
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

void CudaBackend::layer_norm(const NormCall& call) {
  const int64_t rows = call.rstd.numel(), n = rows == 0 ? 0 : call.x.numel() / rows;
  if (rows == 0) return;
  const Tensor weight = readable_weight(*this, call.weight, call.x.dtype());
  const Tensor bias = readable_weight(*this, call.bias, call.x.dtype());
  const bool done = visit_with_wide(call.x.dtype(), call.y.dtype(), [&]<class T, class U>() {
    using C = compute_t<T>;
    const NormParameters<T> p{RowVector<T>(weight, n), RowVector<T>(bias, n),
                              call.mean.defined() ? call.mean.data<C>() : nullptr,
                              call.rstd.data<C>(), C(call.eps)};
    const bool aligned = packs_aligned(row_pack<T>, call.x, call.y);
    const RowLaunch start = row_launch(context_, rows, n, row_pack<T>, held_packs<T>);
    if (start.held)
      launch(context_, layer_norm_held_kernel<T, U>, start.shape, call.x.data<T>(), rows, n,
             start.warps, aligned, p, call.y.data<U>());
    else
      launch(context_, layer_norm_kernel<T, U>, start.shape, call.x.data<T>(), rows, n, aligned, p,
             call.y.data<U>());
  });
  if (done) return;
  ConvertedResult result(*this, call.y, statistics_of(call.x));
  layer_norm({.x = call.x,
              .weight = weight,
              .bias = bias,
              .eps = call.eps,
              .y = result.tensor(),
              .mean = call.mean,
              .rstd = call.rstd});
  result.finish();
}

// A sum and its RMS norm: the sum stays in the registers of its threads.

namespace cuda {
namespace {

template <class T, class B>
__global__ void __launch_bounds__(most_row_threads)
    add_rms_norm_kernel(const T* a, const B* b, int64_t rows, int64_t n, bool warps, bool aligned,
                        NormParameters<T> p, T* sum, T* y) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>, packs = held_packs<T>;
  const Team team(warps);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    const int64_t first = row.first_pack + team.rank;
    Pack<T, size> held[packs];
    C values[size], added[size], squares = 0;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      const int64_t pack = first + k * team.size;
      load_values(a, row, pack, aligned, values), load_values(b, row, pack, aligned, added);
#pragma unroll
      for (int i = 0; i < size; ++i) held[k].values[i] = narrow<T>(values[i] + added[i]);
      widen_all(held[k], values);
      squares += squared_distances(row, pack, C(0), values);
    }
    const C rstd = C(1) / math::sqrt(team.sum(squares) / C(n) + p.eps);
    store_statistics(p, team, r, C(0), rstd);
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      const int64_t pack = first + k * team.size;
      if (pack >= row.pack_end) break;
      widen_all(held[k], values);
      store_values(sum, row, pack, aligned, values);
      normalize(p, row, pack, C(0), rstd, values);
      store_values(y, row, pack, aligned, values);
    }
  }
}

}  // namespace
}  // namespace cuda

void CudaBackend::add_rms_norm(const AddNormCall& call) {
  const int64_t rows = call.rstd.numel(), n = rows == 0 ? 0 : call.y.numel() / rows;
  if (rows == 0) return;
  if (call.a.dtype() != call.sum.dtype() && call.b.dtype() == call.sum.dtype())
    return add_rms_norm({.a = call.b,
                         .b = call.a,
                         .weight = call.weight,
                         .eps = call.eps,
                         .sum = call.sum,
                         .y = call.y,
                         .rstd = call.rstd});
  const Tensor weight = readable_weight(*this, call.weight, call.y.dtype());
  bool held = false;
  // b may be shorter: a short float next to f32.
  visit_with_wide(call.b.dtype(), call.a.dtype(), [&]<class B, class T>() {
    const RowLaunch start = row_launch(context_, rows, n, row_pack<T>, held_packs<T>);
    const NormParameters<T> p{RowVector<T>(weight, n), RowVector<T>({}, n), nullptr,
                              call.rstd.data<compute_t<T>>(), compute_t<T>(call.eps)};
    held = start.held;
    if (held)
      launch(context_, add_rms_norm_kernel<T, B>, start.shape, call.a.data<T>(), call.b.data<B>(),
             rows, n, start.warps, packs_aligned(row_pack<T>, call.a, call.b, call.sum, call.y), p,
             call.sum.data<T>(), call.y.data<T>());
  });
  if (held) return;
  Tensor no_mean;
  binary(call_of<BinaryFormulas>(formula::Add{}), call.a, call.b, call.sum);
  layer_norm({.x = call.sum,
              .weight = weight,
              .bias = {},
              .eps = call.eps,
              .y = call.y,
              .mean = no_mean,
              .rstd = call.rstd});
}

// The gradients of layer norm and RMS norm: along rows for x, down the columns for weight and bias.

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

void CudaBackend::layer_norm_backward(const NormBackwardCall& call) {
  const int64_t rows = call.rstd.numel(), n = rows != 0 ? call.x.numel() / rows : call.x.size(-1);
  const Tensor weight = readable_weight(*this, call.weight, call.x.dtype());
  ConvertedResult result(*this, call.dx, call.x.dtype());
  const auto run = [&]<class T, class U>() {
    using C = compute_t<T>;
    const RowScale<C> scale{call.mean.defined() ? call.mean.data<C>() : nullptr,
                            call.rstd.data<C>()};
    if (call.dx.defined() && rows > 0)
      input_gradient<T, U>(context_, call.x, weight, call.dy, rows, n, scale, result.tensor());
    if (!call.dweight.defined() && !call.dbias.defined()) return;
    constexpr int size = row_pack<T>;
    if (n % size == 0 && packs_aligned(size, call.x, call.dy))
      weight_gradients<T, U, size>(context_, call.x, call.dy, rows, n, scale, call.dweight,
                                   call.dbias);
    else
      weight_gradients<T, U, 1>(context_, call.x, call.dy, rows, n, scale, call.dweight,
                                call.dbias);
  };
  bool done = visit_with_wide(call.x.dtype(), call.dy.dtype(), run);
  if (!done && call.x.dtype() == f32)  // a short gradient, before its cast to f32
    done = visit_short(call.dy.dtype(), [&]<class U>() { run.template operator()<float, U>(); });
  if (done) return result.finish();
  layer_norm_backward({.x = call.x,
                       .weight = weight,
                       .mean = call.mean,
                       .rstd = call.rstd,
                       .dy = converted(*this, call.dy, statistics_of(call.x)),
                       .dx = call.dx,
                       .dweight = call.dweight,
                       .dbias = call.dbias});
}

// Group norm over contiguous [n, c, spatial]: a group of channels of one image is a row, normalized
// by its own moments; weight and bias belong to channels. Backward first sums dy and dy x_hat per
// image and channel; the means of the groups and the gradients of weight and bias follow from these
// sums.

namespace cuda {
namespace {

struct GroupSizes {
  int64_t images, channels, spatial, groups;
  GroupSizes(const Tensor& x, const Tensor& rstd)
      : images(x.size(0)), channels(x.size(1)), spatial(x.size(2)), groups(rstd.size(1)) {}
  HT_HD int64_t per_group() const { return channels / groups; }
  HT_HD int64_t group_length() const { return per_group() * spatial; }
  /// For a row that is one image's group.
  HT_HD int64_t first_channel(int64_t row) const { return row % groups * per_group(); }
};
/// Returns a channel's weight, or `otherwise`.
template <class C> __device__ C channel_value(const Operand& x, int64_t channel, C otherwise) {
  return x.data ? load_as<C>(x, channel) : otherwise;
}

template <class T, class U>
__global__ void __launch_bounds__(most_row_threads, 2)
    group_norm_kernel(const T* x, GroupSizes s, bool warps, bool aligned, Operand weight,
                      Operand bias, compute_t<T> eps, compute_t<T>* means, compute_t<T>* rstds,
                      U* y) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>;
  const Team team(warps);
  for (int64_t r = team.first_row; r < s.images * s.groups; r += team.row_step) {
    const Row<size> row(r, s.group_length());
    const RowMoments<C> moments = moments_of_row(x, row, aligned, true, team);
    const C rstd = C(1) / math::sqrt(moments.variance + eps);
    if (team.rank == 0) means[r] = moments.mean, rstds[r] = rstd;
    for (int64_t c = 0; c < s.per_group(); ++c) {
      const int64_t begin = row.begin + c * s.spatial, channel = s.first_channel(r) + c;
      const Row<size> part(begin, begin + s.spatial, std::integral_constant<int, size>{});
      const C w = channel_value(weight, channel, C(1)), b = channel_value(bias, channel, C(0));
      for (int64_t pack = part.first_pack + team.rank; pack < part.pack_end; pack += team.size) {
        C values[size];
        load_values(x, part, pack, aligned, values);
#pragma unroll
        for (int i = 0; i < size; ++i) values[i] = (values[i] - moments.mean) * rstd * w + b;
        store_values(y, part, pack, aligned, values);
      }
    }
  }
}

/// Computes sums[image, channel] of dy x_hat and of dy.
template <class T, class U>
__global__ void __launch_bounds__(most_row_threads, 2)
    group_norm_sums_kernel(const T* x, const U* dy, GroupSizes s, bool warps, bool aligned,
                           const compute_t<T>* means, const compute_t<T>* rstds,
                           ColumnSums<2, compute_t<T>>* sums) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>;
  const Team team(warps);
  for (int64_t r = team.first_row; r < s.images * s.channels; r += team.row_step) {
    const Row<size> row(r, s.spatial);
    const int64_t group = r / s.per_group();
    const C mean = means[group], rstd = rstds[group];
    C in[size], d[size], sum = 0, sum_x_hat = 0;
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      load_values(x, row, pack, aligned, in), load_values(dy, row, pack, aligned, d);
#pragma unroll
      for (int i = 0; i < size; ++i) sum += d[i], sum_x_hat += d[i] * ((in[i] - mean) * rstd);
    }
    sum = team.sum(sum), sum_x_hat = team.sum(sum_x_hat);
    if (team.rank == 0) sums[r] = {{sum_x_hat, sum}};
  }
}

template <class T, class U>
__global__ void __launch_bounds__(most_row_threads, 2)
    group_norm_backward_kernel(const T* x, const U* dy, GroupSizes s, bool warps, bool aligned,
                               Operand weight, const compute_t<T>* means, const compute_t<T>* rstds,
                               const ColumnSums<2, compute_t<T>>* sums, T* dx) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>;
  const Team team(warps);
  for (int64_t r = team.first_row; r < s.images * s.channels; r += team.row_step) {
    const Row<size> row(r, s.spatial);
    const int64_t group = r / s.per_group(), first = group * s.per_group();
    const C mean = means[group], rstd = rstds[group], n = C(s.group_length());
    C mean_g = 0, mean_g_x_hat = 0;
    for (int64_t c = 0; c < s.per_group(); ++c) {
      const C w = channel_value(weight, (first + c) % s.channels, C(1));
      mean_g_x_hat += w * sums[first + c].of[0] / n, mean_g += w * sums[first + c].of[1] / n;
    }
    const C w = channel_value(weight, r % s.channels, C(1));
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      C in[size], d[size];
      load_values(x, row, pack, aligned, in), load_values(dy, row, pack, aligned, d);
#pragma unroll
      for (int i = 0; i < size; ++i)
        d[i] = rstd * (w * d[i] - mean_g - (in[i] - mean) * rstd * mean_g_x_hat);
      store_values(dx, row, pack, aligned, d);
    }
  }
}

/// Computes the gradients for x in T and dy in U; all sums pass through `sums`.
template <class T, class U>
void group_gradients(const Context& context, const GroupSizes& s, const Tensor& x,
                     const Tensor& weight, const Tensor& mean, const Tensor& rstd, const Tensor& dy,
                     Tensor& dx, const Tensor& dweight, const Tensor& dbias) {
  using C = compute_t<T>;
  const int64_t rows = s.images * s.channels;
  const Tensor memory = scratch(context, {2 * rows}, dtype_of<C>);
  const auto sums = reinterpret_cast<ColumnSums<2, C>*>(memory.raw_data());
  const bool aligned = packs_aligned(row_pack<T>, x, dy, dx);
  const RowLaunch start = row_launch(context, rows, s.spatial, row_pack<T>, held_packs<T>);
  if (rows > 0)
    launch(context, group_norm_sums_kernel<T, U>, start.shape, x.data<T>(), dy.data<U>(), s,
           start.warps, aligned, mean.data<C>(), rstd.data<C>(), sums);
  if (dx.defined() && x.numel() > 0)
    launch(context, group_norm_backward_kernel<T, U>, start.shape, x.data<T>(), dy.data<U>(), s,
           start.warps, aligned, Operand(weight), mean.data<C>(), rstd.data<C>(), sums,
           dx.data<T>());
  if (dweight.defined() || dbias.defined())
    reduce_columns<1, ColumnSums<2, C>>(context, s.images, s.channels,
                                        JoinRows<ColumnSums<2, C>>{sums, s.channels},
                                        StoreWeightGradients{Operand(dweight), Operand(dbias)});
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::group_norm(const NormCall& call) {
  const GroupSizes s(call.x, call.rstd);
  if (call.rstd.numel() == 0) return;
  const bool done = visit_with_wide(call.x.dtype(), call.y.dtype(), [&]<class T, class U>() {
    using C = compute_t<T>;
    const RowLaunch start =
        row_launch(context_, s.images * s.groups, s.group_length(), row_pack<T>, held_packs<T>);
    launch(context_, group_norm_kernel<T, U>, start.shape, call.x.data<T>(), s, start.warps,
           packs_aligned(row_pack<T>, call.x, call.y), Operand(call.weight), Operand(call.bias),
           C(call.eps), call.mean.data<C>(), call.rstd.data<C>(), call.y.data<U>());
  });
  if (done) return;
  ConvertedResult result(*this, call.y, statistics_of(call.x));
  group_norm({.x = call.x,
              .weight = call.weight,
              .bias = call.bias,
              .eps = call.eps,
              .y = result.tensor(),
              .mean = call.mean,
              .rstd = call.rstd});
  result.finish();
}

void CudaBackend::group_norm_backward(const NormBackwardCall& call) {
  ConvertedResult result(*this, call.dx, call.x.dtype());
  const bool done = visit_with_wide(call.x.dtype(), call.dy.dtype(), [&]<class T, class U>() {
    group_gradients<T, U>(context_, GroupSizes(call.x, call.rstd), call.x, call.weight, call.mean,
                          call.rstd, call.dy, result.tensor(), call.dweight, call.dbias);
  });
  if (done) return result.finish();
  group_norm_backward({.x = call.x,
                       .weight = call.weight,
                       .mean = call.mean,
                       .rstd = call.rstd,
                       .dy = converted(*this, call.dy, statistics_of(call.x)),
                       .dx = call.dx,
                       .dweight = call.dweight,
                       .dbias = call.dbias});
}

}  // namespace halftone
