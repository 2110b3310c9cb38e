// Attention: cuDNN if it supports the call, otherwise a block of 64 queries at a time, which goes
// through blocks of 64 keys with a running softmax (Milakov & Gimelshein 2018, "Online normalizer
// calculation for softmax"). Heads wider than 128 are cut into slices of columns, and each slice
// recomputes the scores.
#include <halftone/backends/cuda/attention_products.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/cudnn/cudnn.h>
#include <halftone/backends/cuda/library_calls.h>

namespace halftone {

namespace cuda::attention {
namespace {

/// The running softmax of the rows of a patch.
template <class C> struct RunningSoftmax {
  C maximum[square], total[square];

  __device__ RunningSoftmax() {
#pragma unroll
    for (int i = 0; i < square; ++i) maximum[i] = Rule<C>::minus_infinity, total[i] = 0;
  }
  /// Turns scores into weights relative to the new maximum; rescales earlier sums.
  template <class Tile> __device__ void step(Patch<C, false>& patch, Sums<Tile>& results) {
#pragma unroll
    for (int i = 0; i < square; ++i) {
      C largest = patch.of[i][0];
#pragma unroll
      for (int j = 1; j < square; ++j) largest = Max{}(largest, patch.of[i][j]);
      largest = Max{}(maximum[i], over_row(largest, Max{}));
      const C origin = largest == Rule<C>::minus_infinity ? C(0) : largest;  // no key seen yet
      const C rescaled = math::exp(maximum[i] - origin);
      C sum = 0;
#pragma unroll
      for (int j = 0; j < square; ++j) {
        patch.of[i][j] = math::exp(patch.of[i][j] - origin);
        sum += patch.of[i][j];
      }
      total[i] = total[i] * rescaled + over_row(sum, Sum{});
      maximum[i] = largest;
#pragma unroll
      for (int c = 0; c < results.width; ++c) results.of[i][c] *= rescaled;
    }
  }
  __device__ C inverse(int i) const { return total[i] == 0 ? C(0) : 1 / total[i]; }
  /// Stores the statistics for backward at `row`: in one part, or in two parts that are `apart`.
  __device__ void store_statistics(int i, int64_t row, int64_t apart, C* log_sum_exp) const {
    const bool any = total[i] != 0;
    const C largest = any ? maximum[i] : std::numeric_limits<C>::infinity();
    const C sum = any ? total[i] : C(1);
    if (apart > 0) log_sum_exp[row] = largest, log_sum_exp[apart + row] = sum;
    else log_sum_exp[row] = largest + math::log(sum);
  }
};

template <class T, int across>
__global__ void __launch_bounds__(product_threads)
    attention_kernel(Heads<const T> q, Heads<const T> k, Heads<const T> v, Sizes sizes,
                     Rule<compute_t<T>> rule, Heads<T> y, compute_t<T>* log_sum_exp,
                     int64_t statistics_apart, int64_t slices) {
  using C = compute_t<T>;
  using Result = ResultTile<C, across>;
  __shared__ Products<T, across, is_short_float<T>> products;
  const int64_t blocks = sizes.query_blocks();
  for (int64_t work = blockIdx.x; work < sizes.batch_heads * blocks * slices; work += gridDim.x) {
    const int64_t i0 = work % blocks * tile_edge, head = work / blocks % sizes.batch_heads;
    const int64_t c0 = work / blocks / sizes.batch_heads * Result::columns;
    const HeadRows<T> queries(q, head, i0, sizes.l);
    RunningSoftmax<C> softmax;
    Sums<Result> results;
    const int64_t end = rule.keys_before(i0 + tile_edge);
    for (int64_t j0 = 0; j0 < end; j0 += tile_edge) {
      const int64_t stop = j0 + tile_edge < end ? j0 + tile_edge : end;
      Patch<C, false> patch;
      products.add_scores(queries, HeadRows<T>(k, head, j0, sizes.s), sizes.e, patch);
      rule.apply(patch, head, i0, j0, products.weights);
      softmax.step(patch, results);
      const unsigned kept = rule.kept(patch, head, i0, j0);
#pragma unroll
      for (int i = 0; i < square; ++i)
#pragma unroll
        for (int j = 0; j < square; ++j) patch.of[i][j] *= rule.factor_of(kept, i, j);
      products.put(patch);
      products.add_weighted(HeadRows<T>(v, head, j0, stop), c0, sizes.ev, results);
    }
#pragma unroll
    for (int i = 0; i < square; ++i) {
#pragma unroll
      for (int c = 0; c < results.width; ++c) results.of[i][c] *= softmax.inverse(i);
      const int64_t row = i0 + results.row(i);
      if (c0 == 0 && threadIdx.x % 16 == 0 && row < sizes.l)
        softmax.store_statistics(i, head * sizes.l + row, statistics_apart, log_sum_exp);
    }
    products.store_rows(results, y, head, i0, sizes.l, c0, sizes.ev);
  }
}

}  // namespace
}  // namespace cuda::attention

using namespace cuda;
using namespace cuda::attention;

void CudaBackend::attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                            const AttentionSettings& settings, Tensor& y, Tensor& log_sum_exp) {
  const Sizes sizes = sizes_of(q, k, v);
  if (sizes.batch_heads * sizes.l == 0) return;
  if (!sizes.any_empty() && cudnn::attention(context_, q, k, v, mask, settings, y, log_sum_exp))
    return count_call(Family::attention, By::cudnn);
  count_call(Family::attention, By::own_kernel);
  visit_kernels(q.dtype(), sizes.ev, [&]<class T, int across>() {
    using C = compute_t<T>;
    const int64_t slices = slices_of(sizes.ev, across);
    launch(context_, attention_kernel<T, across>,
           {blocks_for(sizes.batch_heads * sizes.query_blocks() * slices, 1), product_threads},
           Heads<const T>(q), Heads<const T>(k, sizes.group), Heads<const T>(v, sizes.group), sizes,
           Rule<C>(context_, sizes, mask, settings), Heads<T>(y), log_sum_exp.data<C>(),
           statistics_apart(log_sum_exp), slices);
  });
}

}  // namespace halftone
