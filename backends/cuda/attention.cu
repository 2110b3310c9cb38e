// Attention: cuDNN if it supports the call, otherwise a block of 64 queries at a time, which goes
// through blocks of 64 keys with a running softmax (Milakov & Gimelshein 2018, "Online normalizer
// calculation for softmax"). Heads wider than 128 are cut into slices of columns, and each slice
// recomputes the scores.
#include <halftone/backends/cuda/attention.h>

#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/for_cudnn.h>
#include <halftone/backends/cuda/libraries.h>

namespace halftone {

namespace cuda::attention {
namespace {

/// The running softmax of the rows of a patch.
template <class C, int groups> struct RunningSoftmax {
  static constexpr int rows = groups * four;
  C maximum[rows], total[rows];

  __device__ RunningSoftmax() {
#pragma unroll
    for (int i = 0; i < rows; ++i) maximum[i] = Rule<C>::minus_infinity, total[i] = 0;
  }
  /// Turns scores into weights relative to the new maximum; rescales earlier sums.
  template <int across>
  __device__ void step(Patch<C, false, groups>& patch, Sums<C, across, groups>& results) {
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      C largest = patch.of[i][0];
#pragma unroll
      for (int j = 1; j < patch.width; ++j) largest = Max{}(largest, patch.of[i][j]);
      largest = Max{}(maximum[i], over_row(largest, Max{}));
      const C origin = largest == Rule<C>::minus_infinity ? C(0) : largest;  // no key seen yet
      const C rescaled = math::exp(maximum[i] - origin);
      C sum = 0;
#pragma unroll
      for (int j = 0; j < patch.width; ++j) {
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
__global__ void __launch_bounds__(threads_of<T>, blocks_of<T, across>)
    attention_kernel(Heads<const T> q, Heads<const T> k, Heads<const T> v, Sizes sizes,
                     Rule<compute_t<T>> rule, Heads<T> y, compute_t<T>* log_sum_exp,
                     int64_t statistics_apart, int64_t slices) {
  using C = compute_t<T>;
  __shared__ Products<T, across, is_short_float<T>> products;
  const int64_t blocks = sizes.query_blocks();
  for (int64_t work = blockIdx.x; work < sizes.batch_heads * blocks * slices; work += gridDim.x) {
    // The last queries see the most keys under a causal mask: they begin first.
    const int64_t i0 = (blocks - 1 - work % blocks) * tile_edge;
    const int64_t head = work / blocks % sizes.batch_heads;
    const int64_t c0 = work / blocks / sizes.batch_heads * (across * tile_edge);
    const HeadRows<T> queries(q, head, i0, sizes.l);
    const int64_t first_mask = rule.mask_of(head);
    RunningSoftmax<C, groups_of<T>> softmax;
    Sums<C, across, groups_of<T>> results;
    const int64_t end = rule.keys_before(i0 + tile_edge);
    for (int64_t j0 = 0; j0 < end; j0 += tile_edge) {
      const int64_t stop = j0 + tile_edge < end ? j0 + tile_edge : end;
      Patch<C, false, groups_of<T>> patch;
      products.add_scores(queries, HeadRows<T>(k, head, j0, sizes.s), sizes.e, patch);
      rule.apply(patch, first_mask, i0, j0, products.weights);
      softmax.step(patch, results);
      const uint32_t kept = rule.kept(patch, head, i0, j0);
#pragma unroll
      for (int i = 0; i < patch.height; ++i)
#pragma unroll
        for (int j = 0; j < patch.width; ++j) patch.of[i][j] *= rule.factor_of(patch, kept, i, j);
      products.put(patch);
      products.add_weighted(HeadRows<T>(v, head, j0, stop), c0, sizes.ev, results);
    }
#pragma unroll
    for (int i = 0; i < results.height; ++i) {
#pragma unroll
      for (int c = 0; c < results.width; ++c) results.of[i][c] *= softmax.inverse(i);
      const int64_t row = i0 + results.row(i);
      if (c0 == 0 && results.left() == 0 && row < sizes.l)
        softmax.store_statistics(i, head * sizes.l + row, statistics_apart, log_sum_exp);
    }
    products.store_rows(results, y, head, i0, sizes.l, c0, sizes.ev);
  }
}

}  // namespace
}  // namespace cuda::attention

using namespace cuda;
using namespace cuda::attention;

void CudaBackend::attention(const AttentionCall& call) {
  const Sizes sizes = sizes_of(call.q, call.k, call.v);
  if (sizes.batch_heads * sizes.l == 0) return;
  if (!sizes.any_empty() && cudnn::attention(context_, call))
    return count_call(Family::attention, By::cudnn);
  count_call(Family::attention, By::own_kernel);
  visit_kernels(call.q.dtype(), sizes.ev, [&]<class T, int across>() {
    using C = compute_t<T>;
    const int64_t slices = slices_of(sizes.ev, across);
    launch(context_, attention_kernel<T, across>,
           {blocks_for(sizes.batch_heads * sizes.query_blocks() * slices, 1), threads_of<T>},
           Heads<const T>(call.q), Heads<const T>(call.k, sizes.group),
           Heads<const T>(call.v, sizes.group), sizes,
           Rule<C>(context_, sizes, call.mask, call.settings), Heads<T>(call.y),
           call.log_sum_exp.data<C>(), statistics_apart(call.log_sum_exp), slices);
  });
}

// The gradients of attention: cuDNN if it supports the call. Otherwise weights are recomputed from
// log_sum_exp, in one kernel per block of queries (dq) and one per block of keys (dk, dv), so that
// one block owns each sum. With w the weights and d dropout's factors:
//   g = d (dy v^T),  ds = scale w (g - delta),  delta = sum of w g over keys = sum of y dy
//   dq = ds k,  dk = ds^T q,  dv = (d w)^T dy
// g - delta is a small difference if there are few weights or one is near 1, and a short y is
// rounded. So if there are few queries or keys, delta is summed from w g, otherwise from y dy.

namespace cuda::attention {
namespace {

/// Computes delta [n, heads, l]; a warp per row.
template <class T>
__global__ void delta_kernel(Heads<const T> y, Heads<const T> dy, Sizes sizes,
                             compute_t<T>* delta) {
  const int lane = int(threadIdx.x) % warp_lanes;
  const int64_t warps = all_threads() / warp_lanes;
  for (int64_t row = global_thread() / warp_lanes; row < sizes.batch_heads * sizes.l;
       row += warps) {
    const T* const a = y.row(row / sizes.l, row % sizes.l);
    const T* const b = dy.row(row / sizes.l, row % sizes.l);
    compute_t<T> sum = 0;
    for (int64_t c = lane; c < sizes.ev; c += warp_lanes) sum += widen(a[c]) * widen(b[c]);
    sum = warp_reduce(sum, Sum{});
    if (lane == 0) delta[row] = sum;
  }
}

/// The inputs of backward.
template <class T> struct Inputs {
  Heads<const T> q, k, v, dy;
  const compute_t<T>* log_sum_exp;
  int64_t statistics_apart;
  const compute_t<T>* delta;
  Rule<compute_t<T>> rule;
};

/// Statistics of a query: log_sum_exp in two parts, as weight = exp(score - shift) share, and
/// delta. A missing query gets weights of 0.
template <class C> struct QueryStatistics {
  C shift, share, delta;
  template <class T> __device__ QueryStatistics(const Inputs<T>& in, int64_t head, int64_t i) {
    const bool inside = i < in.rule.l;
    const int64_t row = head * in.rule.l + i;
    shift = inside ? in.log_sum_exp[row] : std::numeric_limits<C>::infinity();
    share =
        inside && in.statistics_apart > 0 ? C(1) / in.log_sum_exp[in.statistics_apart + row] : C(1);
    delta = inside && in.delta ? in.delta[row] : C(0);
  }
};

/// Turns scores into d w, and products dy v^T into ds.
template <class T, class P>
__device__ void differentiate(const Inputs<T>& in, int64_t head, int64_t i0, int64_t j0, P& scores,
                              P& gradients) {
  using C = compute_t<T>;
  const uint32_t kept = in.rule.kept(scores, head, i0, j0);
#pragma unroll
  for (int a = 0; a < scores.queries; ++a) {
    const QueryStatistics<C> query(in, head, i0 + scores.query(a));
#pragma unroll
    for (int b = 0; b < scores.keys; ++b) {
      const C weight = math::exp(scores.at(a, b) - query.shift) * query.share;
      const C factor = in.rule.drops() ? in.rule.factor_of(scores, kept, a, b) : C(1);
      gradients.at(a, b) = in.rule.scale * weight * (factor * gradients.at(a, b) - query.delta);
      scores.at(a, b) = factor * weight;
    }
  }
}

/// Computes delta from weights and their gradients, a block of queries at a time; in.delta is null
/// here.
template <class T>
__global__ void __launch_bounds__(threads_of<T>)
    exact_delta_kernel(Inputs<T> in, Sizes sizes, compute_t<T>* delta) {
  using C = compute_t<T>;
  __shared__ Products<T, 1, false> products;
  const int64_t blocks = sizes.query_blocks();
  for (int64_t work = blockIdx.x; work < sizes.batch_heads * blocks; work += gridDim.x) {
    const int64_t i0 = work % blocks * tile_edge, head = work / blocks;
    const HeadRows<T> queries(in.q, head, i0, sizes.l), incoming(in.dy, head, i0, sizes.l);
    const int64_t first_mask = in.rule.mask_of(head);
    constexpr int count = Patch<C, false, groups_of<T>>::queries;
    C sums[count] = {}, weights[count] = {};
    const int64_t end = in.rule.keys_before(i0 + tile_edge);
    for (int64_t j0 = 0; j0 < end; j0 += tile_edge) {
      Patch<C, false, groups_of<T>> scores, gradients;
      products.add_scores(queries, HeadRows<T>(in.k, head, j0, sizes.s), sizes.e, scores);
      products.add_scores(incoming, HeadRows<T>(in.v, head, j0, sizes.s), sizes.ev, gradients);
      in.rule.apply(scores, first_mask, i0, j0, products.weights);
      const uint32_t kept = in.rule.kept(scores, head, i0, j0);
#pragma unroll
      for (int a = 0; a < count; ++a) {
        const QueryStatistics<C> query(in, head, i0 + scores.query(a));
#pragma unroll
        for (int b = 0; b < scores.keys; ++b) {
          const C weight = math::exp(scores.at(a, b) - query.shift) * query.share;
          sums[a] += weight * in.rule.factor_of(scores, kept, a, b) * gradients.at(a, b);
          weights[a] += weight;
        }
      }
    }
#pragma unroll
    for (int a = 0; a < count; ++a) {
      // Divides by the sum of the weights, which rounding moves slightly from 1: with one key, ds
      // is 0.
      const C all = over_row(weights[a], Sum{}), total = over_row(sums[a], Sum{});
      const C sum = all == C(0) ? C(0) : total / all;
      const int64_t i = i0 + Patch<C, false, groups_of<T>>::query(a);
      if (Patch<C, false, groups_of<T>>::left() == 0 && i < sizes.l)
        delta[head * sizes.l + i] = sum;
    }
  }
}

/// Returns whether delta is summed from w g. That needs two more products in addition to seven, for
/// shapes where products are small.
template <class T> bool exact_delta(const Sizes& sizes) {
  return sizeof(T) < 4 && (sizes.l <= tile_edge || sizes.s <= tile_edge);
}

template <class T, int across>
__global__ void __launch_bounds__(threads_of<T>, blocks_of<T, across>)
    query_gradient_kernel(Inputs<T> in, Sizes sizes, Heads<T> dq, int64_t slices) {
  using C = compute_t<T>;
  __shared__ Products<T, across, short_gradients<T>> products;
  const int64_t blocks = sizes.query_blocks();
  for (int64_t work = blockIdx.x; work < sizes.batch_heads * blocks * slices; work += gridDim.x) {
    // The last queries see the most keys under a causal mask: they begin first.
    const int64_t i0 = (blocks - 1 - work % blocks) * tile_edge;
    const int64_t head = work / blocks % sizes.batch_heads;
    const int64_t c0 = work / blocks / sizes.batch_heads * (across * tile_edge);
    const HeadRows<T> queries(in.q, head, i0, sizes.l), incoming(in.dy, head, i0, sizes.l);
    const int64_t first_mask = in.rule.mask_of(head);
    Sums<C, across, groups_of<T>> results;
    const int64_t end = in.rule.keys_before(i0 + tile_edge);
    for (int64_t j0 = 0; j0 < end; j0 += tile_edge) {
      Patch<C, false, groups_of<T>> scores, gradients;
      products.add_scores(incoming, HeadRows<T>(in.v, head, j0, sizes.s), sizes.ev, gradients);
      products.add_scores(queries, HeadRows<T>(in.k, head, j0, sizes.s), sizes.e, scores);
      in.rule.apply(scores, first_mask, i0, j0, products.weights);
      differentiate(in, head, i0, j0, scores, gradients);
      products.put(gradients);
      const int64_t stop = j0 + tile_edge < end ? j0 + tile_edge : end;
      products.add_weighted(HeadRows<T>(in.k, head, j0, stop), c0, sizes.e, results);
    }
    products.store_rows(results, dq, head, i0, sizes.l, c0, sizes.e);
  }
}

template <class T, int across>
__global__ void __launch_bounds__(threads_of<T>)
    key_gradient_kernel(Inputs<T> in, Sizes sizes, Heads<T> dk, Heads<T> dv, int64_t slices) {
  using C = compute_t<T>;
  __shared__ Products<T, across, short_gradients<T>> products;
  const int64_t blocks = sizes.key_blocks();
  const int64_t key_heads = sizes.batch_heads / sizes.group;
  for (int64_t work = blockIdx.x; work < key_heads * blocks * slices; work += gridDim.x) {
    const int64_t j0 = work % blocks * tile_edge, key_head = work / blocks % key_heads;
    const int64_t c0 = work / blocks / key_heads * (across * tile_edge);
    Sums<C, across, groups_of<T>> key_results, value_results;
    const int64_t first = in.rule.causal ? j0 : 0;  // query i0 sees keys up to itself
    // Goes through all queries of all heads that share these keys, one head after the other.
    const int64_t turns = first < sizes.l ? (sizes.l - first + tile_edge - 1) / tile_edge : 0;
    for (int64_t turn = 0; turn < turns * sizes.group; ++turn) {
      const int64_t head = key_head * sizes.group + turn / turns;
      const int64_t i0 = first + turn % turns * tile_edge;
      const int64_t end = i0 + tile_edge < sizes.l ? i0 + tile_edge : sizes.l;
      const HeadRows<T> queries(in.q, head, i0, end), incoming(in.dy, head, i0, end);
      Patch<C, true, groups_of<T>> scores, gradients;
      products.add_scores(HeadRows<T>(in.v, head, j0, sizes.s), incoming, sizes.ev, gradients);
      products.add_scores(HeadRows<T>(in.k, head, j0, sizes.s), queries, sizes.e, scores);
      in.rule.apply(scores, in.rule.mask_of(head), i0, j0, products.weights);
      differentiate(in, head, i0, j0, scores, gradients);
      products.put(gradients);
      products.add_weighted(queries, c0, sizes.e, key_results);
      products.put(scores);
      products.add_weighted(incoming, c0, sizes.ev, value_results);
    }
    products.store_rows(key_results, dk, key_head, j0, sizes.s, c0, sizes.e);
    products.store_rows(value_results, dv, key_head, j0, sizes.s, c0, sizes.ev);
  }
}

}  // namespace
}  // namespace cuda::attention

using namespace cuda;
using namespace cuda::attention;

void CudaBackend::attention_backward(const AttentionBackwardCall& call) {
  const Sizes sizes = sizes_of(call.q, call.k, call.v);
  if (sizes.batch_heads == 0) return;
  if (!sizes.any_empty() && cudnn::attention_backward(context_, call))
    return count_call(Family::attention_backward, By::cudnn);
  count_call(Family::attention_backward, By::own_kernel);
  const Tensor delta = scratch(context_, {sizes.batch_heads, sizes.l}, call.log_sum_exp.dtype());
  visit_kernels(call.q.dtype(), std::max(sizes.e, sizes.ev), [&]<class T, int across>() {
    using C = compute_t<T>;
    const auto blocks = [&](int64_t blocks_of_rows, int64_t slices) -> LaunchShape {
      return {blocks_for(sizes.batch_heads * blocks_of_rows * slices, 1), threads_of<T>};
    };
    Inputs<T> in{Heads<const T>(call.q),
                 Heads<const T>(call.k, sizes.group),
                 Heads<const T>(call.v, sizes.group),
                 Heads<const T>(call.dy),
                 call.log_sum_exp.data<C>(),
                 statistics_apart(call.log_sum_exp),
                 nullptr,
                 Rule<C>(context_, sizes, call.mask, call.settings)};
    if (sizes.l > 0) {
      const int64_t query_columns = slices_of(sizes.e, across);
      if (exact_delta<T>(sizes)) {
        if constexpr (sizeof(T) < 4)
          launch(context_, exact_delta_kernel<T>, blocks(sizes.query_blocks(), 1), in, sizes,
                 delta.data<C>());
      } else {
        launch(context_, delta_kernel<T>,
               shape_for(context_, sizes.batch_heads * sizes.l * warp_lanes),
               Heads<const T>(call.y), in.dy, sizes, delta.data<C>());
      }
      in.delta = delta.data<C>();
      launch(context_, query_gradient_kernel<T, across>,
             blocks(sizes.query_blocks(), query_columns), in, sizes, Heads<T>(call.dq),
             query_columns);
    }
    // The sums of dk and dv of 128 columns do not fit the registers of f32.
    constexpr int key_across = groups_of<T> == 1 ? across : 1;
    const int64_t columns = slices_of(std::max(sizes.e, sizes.ev), key_across);
    if (sizes.s > 0)
      launch(context_, key_gradient_kernel<T, key_across>, blocks(sizes.key_blocks(), columns), in,
             sizes, Heads<T>(call.dk), Heads<T>(call.dv), columns);
  });
}

}  // namespace halftone
