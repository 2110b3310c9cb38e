// The gradients of softmax, dx = y (dy - sum(y dy)), and of its logarithm, dx = dy - exp(y)
// sum(dy). Rows that fit the registers of their threads are read once.
#include <halftone/backends/cuda/conversion.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/rows.h>
#include <halftone/core/math.h>

namespace halftone {

namespace cuda {
namespace {

template <class C> __device__ C summand(C y, C dy, bool logarithm) {
  return logarithm ? dy : y * dy;
}
template <class C> __device__ C gradient(C y, C dy, C sum, bool logarithm) {
  return logarithm ? dy - math::exp(y) * sum : y * (dy - sum);
}

/// y and dy are kept in their stored dtypes: `held_pairs` packs of each.
template <class U, class T, int size>
__global__ void __launch_bounds__(most_row_threads)
    softmax_backward_held_kernel(const U* y, const U* dy, int64_t rows, int64_t n, bool warps,
                                 bool aligned, bool logarithm, T* dx) {
  using C = compute_t<U>;
  constexpr int packs = held_values<U> / 2 / size;
  const Team team(warps);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    const int64_t first = row.first_pack + team.rank;
    Pack<U, size> result[packs], incoming[packs];
    C sum = 0;
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      result[k] = load_pack(y, row, first + k * team.size, aligned, U(0));
      incoming[k] = load_pack(dy, row, first + k * team.size, aligned, U(0));
#pragma unroll
      for (int i = 0; i < size; ++i)
        sum += summand(widen(result[k].values[i]), widen(incoming[k].values[i]), logarithm);
    }
    sum = team.sum(sum);
#pragma unroll
    for (int k = 0; k < packs; ++k) {
      compute_t<T> out[size];
#pragma unroll
      for (int i = 0; i < size; ++i)
        out[i] = gradient(widen(result[k].values[i]), widen(incoming[k].values[i]), sum, logarithm);
      store_values(dx, row, first + k * team.size, aligned, out);
    }
  }
}

template <class U, class T, int size>
__global__ void __launch_bounds__(most_row_threads)
    softmax_backward_kernel(const U* y, const U* dy, int64_t rows, int64_t n, bool aligned,
                            bool logarithm, T* dx) {
  using C = compute_t<U>;
  const Team team(false);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    C out[size], incoming[size], sum = 0;
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      load_values(y, row, pack, aligned, out), load_values(dy, row, pack, aligned, incoming);
#pragma unroll
      for (int i = 0; i < size; ++i) sum += summand(out[i], incoming[i], logarithm);
    }
    sum = team.sum(sum);
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      load_values(y, row, pack, aligned, out), load_values(dy, row, pack, aligned, incoming);
#pragma unroll
      for (int i = 0; i < size; ++i) out[i] = gradient(out[i], incoming[i], sum, logarithm);
      store_values(dx, row, pack, aligned, out);
    }
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::softmax_backward(const Tensor& y, const Tensor& dy, bool logarithm, Tensor& dx) {
  if (y.numel() == 0) return;
  const int64_t n = y.rank() == 0 ? 1 : y.size(-1), rows = y.numel() / n;
  // y may be f32 while dx is short.
  const bool done =
      y.dtype() == dy.dtype() && visit_with_wide(dx.dtype(), y.dtype(), [&]<class T, class U>() {
        constexpr int size = row_pack<T>, packs = held_values<U> / 2 / size;
        const bool aligned = packs_aligned(size, y, dy, dx);
        const RowLaunch start = row_launch(context_, rows, n, size, packs);
        if (start.held)
          launch(context_, softmax_backward_held_kernel<U, T, size>, start.shape, y.data<U>(),
                 dy.data<U>(), rows, n, start.warps, aligned, logarithm, dx.data<T>());
        else
          launch(context_, softmax_backward_kernel<U, T, size>, start.shape, y.data<U>(),
                 dy.data<U>(), rows, n, aligned, logarithm, dx.data<T>());
      });
  if (done) return;
  const DType wide = statistics_of(y, dy, dx);
  ConvertedResult result(*this, dx, wide);
  softmax_backward(converted(*this, y, wide), converted(*this, dy, wide), logarithm,
                   result.tensor());
  result.finish();
}

}  // namespace halftone
