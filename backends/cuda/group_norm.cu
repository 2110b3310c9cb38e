// Group norm over contiguous [n, c, spatial]: a group of channels of one image is a row, normalized
// by its own moments; weight and bias belong to channels. Backward first sums dy and dy x_hat per
// image and channel; the means of the groups and the gradients of weight and bias follow from these
// sums.
#include <halftone/backends/cuda/conversion.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/norm.h>

namespace halftone {

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

void CudaBackend::group_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                             Tensor& y, Tensor& mean, Tensor& rstd) {
  const GroupSizes s(x, rstd);
  if (rstd.numel() == 0) return;
  const bool done = visit_with_wide(x.dtype(), y.dtype(), [&]<class T, class U>() {
    using C = compute_t<T>;
    const RowLaunch start =
        row_launch(context_, s.images * s.groups, s.group_length(), row_pack<T>, held_packs<T>);
    launch(context_, group_norm_kernel<T, U>, start.shape, x.data<T>(), s, start.warps,
           packs_aligned(row_pack<T>, x, y), Operand(weight), Operand(bias), C(eps), mean.data<C>(),
           rstd.data<C>(), y.data<U>());
  });
  if (done) return;
  ConvertedResult result(*this, y, statistics_of(x));
  group_norm(x, weight, bias, eps, result.tensor(), mean, rstd);
  result.finish();
}

void CudaBackend::group_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& mean,
                                      const Tensor& rstd, const Tensor& dy, Tensor& dx,
                                      Tensor& dweight, Tensor& dbias) {
  ConvertedResult result(*this, dx, x.dtype());
  const bool done = visit_with_wide(x.dtype(), dy.dtype(), [&]<class T, class U>() {
    group_gradients<T, U>(context_, GroupSizes(x, rstd), x, weight, mean, rstd, dy, result.tensor(),
                          dweight, dbias);
  });
  if (done) return result.finish();
  group_norm_backward(x, weight, mean, rstd, converted(*this, dy, statistics_of(x)), dx, dweight,
                      dbias);
}

}  // namespace halftone
