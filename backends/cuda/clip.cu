// The bound of a clip, and the clip. The sum of squares has the order of core/formats/block_scale.h: a block of
// threads is the lanes of one sum. A quantile is found digit by digit in three passes, each of
// which counts the values of one digit; whole numbers, so the order does not matter.
#include <limits>

#include <halftone/backends/cuda/block.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/core/formats/block_scale.h>

namespace halftone {

namespace cuda {
namespace {

constexpr unsigned lanes = sum_lanes;
constexpr int64_t most_rows = 128;  // of counts of digits

/// Adds the lanes' totals up in the order of summed_by_lanes(); all threads get the sum.
__device__ double sum_of_lanes(double own) {
  __shared__ double totals[lanes];
  const unsigned lane = threadIdx.x;
  totals[lane] = own;
  for (unsigned half = lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) totals[lane] += totals[lane + half];
  }
  __syncthreads();
  const double sum = totals[0];
  __syncthreads();  // totals may be written again
  return sum;
}

/// Computes one sum of squares, and one count of finite numbers, per squares_together neighbors.
__global__ void squares_kernel(const float* x, int64_t count, int64_t pieces, double* squares,
                               int* finite) {
  for (int64_t piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const int64_t first = piece * squares_together;
    const int64_t length = count - first < squares_together ? count - first : squares_together;
    double sum = 0;
    int numbers = 0;
    for (int64_t i = threadIdx.x; i < length; i += lanes) {
      const float value = x[first + i];
      sum += finite_square(value);
      numbers += is_finite_magnitude(value) ? 1 : 0;
    }
    sum = sum_of_lanes(sum), numbers = block_sum(numbers);
    if (threadIdx.x == 0) squares[piece] = sum, finite[piece] = numbers;
  }
}

__global__ void rms_kernel(double multiple, const double* squares, const int* finite,
                           int64_t pieces, float* bound) {
  double sum = 0;
  int64_t numbers = 0;
  for (int64_t i = threadIdx.x; i < pieces; i += lanes) sum += squares[i], numbers += finite[i];
  sum = sum_of_lanes(sum), numbers = block_sum(numbers);
  if (threadIdx.x == 0) *bound = bound_by_rms(multiple, sum, numbers);
}

/// Counts the values of a digit among the magnitudes that follow the prefix, in `rows` shares. A
/// null prefix: among all magnitudes.
__global__ void count_digits_kernel(MagnitudeDigit digit, const uint32_t* prefix, const float* x,
                                    int64_t count, int64_t rows, unsigned* counts) {
  __shared__ unsigned own[most_digit_values];
  const uint32_t before = prefix ? *prefix : 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (unsigned i = threadIdx.x; i < most_digit_values; i += blockDim.x) own[i] = 0;
    __syncthreads();
    for (int64_t i = row * blockDim.x + threadIdx.x; i < count; i += rows * blockDim.x) {
      const uint32_t bits = magnitude_bits(x[i]);
      if (digit.follows(bits, before)) atomicAdd(own + digit.of(bits), 1u);
    }
    __syncthreads();
    for (unsigned i = threadIdx.x; i < most_digit_values; i += blockDim.x)
      counts[row * most_digit_values + i] = own[i];
    __syncthreads();  // own may be written again
  }
}

/// Appends the digit of the magnitude at `place` to the prefix; then `place` counts among the
/// magnitudes that follow it. first: the place is that of the quantile. All 0 without magnitudes.
__global__ void find_digit_kernel(MagnitudeDigit digit, bool first, double share,
                                  const unsigned* counts, int64_t rows, uint32_t* prefix,
                                  int64_t* place) {
  constexpr int each = most_digit_values / int(lanes);
  __shared__ int64_t sums[lanes];
  const int lane = int(threadIdx.x);
  int64_t own[each] = {}, sum = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int i = 0; i < each; ++i) own[i] += counts[row * most_digit_values + lane * each + i];
  for (int i = 0; i < each; ++i) sum += own[i];
  sums[lane] = sum;
  const uint32_t before = first ? 0 : *prefix;
  int64_t wanted = first ? 0 : *place, below = 0, all = 0;
  __syncthreads();
  for (int i = 0; i < int(lanes); ++i) below += i < lane ? sums[i] : 0, all += sums[i];
  if (first && all > 0) wanted = place_of_quantile(share, all);
  if (wanted == 0 && lane == 0) *prefix = 0, *place = 0;
  if (wanted <= below || wanted > below + sum) return;
  bool found = false;
  for (int i = 0; i < each; ++i) {
    if (!found && wanted <= below + own[i]) {
      *prefix = before << digit.bits | unsigned(lane * each + i), *place = wanted - below;
      found = true;
    }
    below += own[i];
  }
}

__global__ void clip_kernel(const float* x, const float* bound, float* y, int64_t count) {
  const float most = *bound;
  for (int64_t i = global_thread(); i < count; i += all_threads()) y[i] = clipped(x[i], most);
}

void bound_by_rms_of(const Context& context, double multiple, const Tensor& x, Tensor& bound) {
  const int64_t pieces = (x.numel() + squares_together - 1) / squares_together;
  const Tensor squares = scratch(context, {pieces}, f64), finite = scratch(context, {pieces}, i32);
  launch(context, squares_kernel, shape_for_rows(context, pieces, lanes), x.data<float>(),
         x.numel(), pieces, squares.data<double>(), finite.data<int32_t>());
  launch(context, rms_kernel, {dim3(1), dim3(lanes)}, multiple, squares.data<double>(),
         finite.data<int32_t>(), pieces, bound.data<float>());
}

void bound_by_quantile_of(const Context& context, double share, const Tensor& x, Tensor& bound) {
  const unsigned threads = 1024;
  const int64_t rows = blocks_for(x.numel(), threads, most_rows);
  const Tensor counts = scratch(context, {rows, most_digit_values}, i32);
  const Tensor place = scratch(context, {}, i64);
  auto* const own = reinterpret_cast<unsigned*>(counts.data<int32_t>());
  auto* const prefix = reinterpret_cast<uint32_t*>(bound.data<float>());
  for (const MagnitudeDigit& digit : magnitude_digits) {
    const bool first = &digit == magnitude_digits;
    launch(context, count_digits_kernel, shape_for_rows(context, rows, threads), digit,
           first ? nullptr : prefix, x.data<float>(), x.numel(), rows, own);
    launch(context, find_digit_kernel, {dim3(1), dim3(lanes)}, digit, first, share, own, rows,
           prefix, place.data<int64_t>());
  }
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::clip_bound(const Tensor& x, const Clip& clip, Tensor& bound) {
  if (clip.rms) bound_by_rms_of(context_, *clip.rms, x, bound);
  else if (clip.quantile) bound_by_quantile_of(context_, *clip.quantile, x, bound);
  else fill(std::numeric_limits<double>::infinity(), bound);
}

void CudaBackend::clip(const Tensor& x, const Tensor& bound, Tensor& y) {
  if (x.numel() == 0) return;
  launch(context_, clip_kernel, shape_for(context_, x.numel()), x.data<float>(),
         bound.data<float>(), y.data<float>(), x.numel());
}

}  // namespace halftone
