// Along rows: the position of the largest or smallest element, and running sums and products (in
// double, integers exactly).
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/rows.h>

namespace halftone {

namespace cuda {
namespace {

template <class C> __device__ bool same_value(C a, C b) { return a == b || (a != a && b != b); }

/// Takes the first of equal values; NaN comes first. `flipped`: searches for the smallest.
template <class C>
__global__ void __launch_bounds__(most_row_threads)
    arg_reduce_kernel(Operand x, int64_t rows, int64_t n, bool warps, bool flipped,
                      int64_t* index) {
  using Limits = std::numeric_limits<C>;
  constexpr C least = Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  constexpr C most = Limits::has_infinity ? Limits::infinity() : Limits::max();
  const Team team(warps);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    C best = flipped ? most : least;
    int64_t place = n;
    for (int64_t i = team.rank; i < n; i += team.size) {
      const C value = load_as<C>(x, r * n + i);
      const bool better = flipped ? value < best : value > best;
      const bool first_nan = value != value && best == best;
      if (place == n || better || first_nan) best = value, place = i;
    }
    const C winner = flipped ? team.reduce(best, Min{}, most) : team.reduce(best, Max{}, least);
    place = team.reduce(same_value(best, winner) ? place : n, Min{}, n);
    if (team.rank == 0) index[r] = place < n ? place : 0;
  }
}

/// Returns the sum of values 0 .. lane of a warp.
template <class C> __device__ C warp_scan(C value) {
  const int lane = int(threadIdx.x) % warp_lanes;
  for (int by = 1; by < warp_lanes; by *= 2) {
    const C before = __shfl_up_sync(whole_warp, value, unsigned(by));
    if (lane >= by) value += before;
  }
  return value;
}

/// A block per row, `block_threads` elements at a time.
template <class C>
__global__ void __launch_bounds__(block_threads)
    cumulative_sum_kernel(Operand x, int64_t rows, int64_t n, bool reverse, Operand y) {
  constexpr int warps = int(block_threads) / warp_lanes;
  __shared__ C of_warps[warps];
  const int thread = int(threadIdx.x), lane = thread % warp_lanes, warp = thread / warp_lanes;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    C carried = 0;
    for (int64_t first = 0; first < n; first += block_threads) {
      const int64_t turn = first + thread, place = r * n + (reverse ? n - 1 - turn : turn);
      const bool exists = turn < n;
      C sum = warp_scan(exists ? load_as<C>(x, place) : C(0));
      if (lane == warp_lanes - 1) of_warps[warp] = sum;
      __syncthreads();
      C before = carried;
      for (int w = 0; w < warps; ++w) {
        if (w < warp) before += of_warps[w];
        carried += of_warps[w];
      }
      if (exists) store_as<C>(y, place, before + sum);
      __syncthreads();  // of_warps may be written again
    }
  }
}

/// A thread per row: the products of parts could be infinite although the row's are not.
template <class C>
__global__ void cumulative_product_kernel(Operand x, int64_t rows, int64_t n, Operand y) {
  for (int64_t r = global_thread(); r < rows; r += all_threads()) {
    C product = 1;
    for (int64_t i = r * n; i < (r + 1) * n; ++i) {
      product = math::running_product(product, load_as<C>(x, i));
      store_as<C>(y, i, product);
    }
  }
}
/// before: scratch memory for the products of the factors before each one.
__global__ void cumulative_product_backward_kernel(Operand x, Operand dy, int64_t rows, int64_t n,
                                                   double* before, Operand dx) {
  for (int64_t r = global_thread(); r < rows; r += all_threads()) {
    double product = 1, after = 0;
    for (int64_t i = r * n; i < (r + 1) * n; ++i) {
      before[i] = product;
      product = math::running_product(product, load_as<double>(x, i));
    }
    for (int64_t i = (r + 1) * n - 1; i >= r * n; --i) {
      after += load_as<double>(dy, i);
      store_as<double>(dx, i, math::running_product_slope(before[i], after));
      after = math::running_product_slope(load_as<double>(x, i), after);
    }
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::arg_reduce(bool largest, const Tensor& x, Tensor& index) {
  const int64_t rows = index.numel(), n = rows == 0 ? 0 : x.numel() / rows;
  if (rows == 0) return;
  const RowLaunch start = row_launch(context_, rows, n, 1, 32);
  const auto run = [&](auto kernel) {
    launch(context_, kernel, start.shape, Operand(x), rows, n, start.warps, !largest,
           index.data<int64_t>());
  };
  if (!is_floating(x.dtype())) run(arg_reduce_kernel<int64_t>);
  else if (x.dtype() == f64) run(arg_reduce_kernel<double>);
  else run(arg_reduce_kernel<float>);
}

void CudaBackend::cumulative_sum(const Tensor& x, bool reverse, Tensor& y) {
  if (x.numel() == 0) return;
  const int64_t n = x.rank() == 0 ? 1 : x.size(-1), rows = x.numel() / n;
  launch(context_,
         is_floating(x.dtype()) ? cumulative_sum_kernel<double> : cumulative_sum_kernel<int64_t>,
         shape_for_rows(context_, rows), Operand(x), rows, n, reverse, Operand(y));
}

void CudaBackend::cumulative_product(const Tensor& x, Tensor& y) {
  if (x.numel() == 0) return;
  const int64_t n = x.rank() == 0 ? 1 : x.size(-1), rows = x.numel() / n;
  launch(context_,
         is_floating(x.dtype()) ? cumulative_product_kernel<double>
                                : cumulative_product_kernel<int64_t>,
         shape_for(context_, rows), Operand(x), rows, n, Operand(y));
}

void CudaBackend::cumulative_product_backward(const Tensor& x, const Tensor& dy, Tensor& dx) {
  if (x.numel() == 0) return;
  const int64_t n = x.rank() == 0 ? 1 : x.size(-1), rows = x.numel() / n;
  const Tensor before = scratch(context_, {x.numel()}, f64);
  launch(context_, cumulative_product_backward_kernel, shape_for(context_, rows), Operand(x),
         Operand(dy), rows, n, before.data<double>(), Operand(dx));
}

}  // namespace halftone
