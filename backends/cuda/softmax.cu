// Softmax, its logarithm and log(sum(exp)) along rows. A row that fits the registers of its threads
// is read once; a longer one is read again, from the L2 cache.
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/launch.h>
#include <halftone/backends/cuda/rows.h>
#include <halftone/core/math.h>

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

// The gradients of softmax, dx = y (dy - sum(y dy)), and of its logarithm, dx = dy - exp(y)
// sum(dy). Rows that fit the registers of their threads are read once.

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

// Cross-entropy from logits in their own dtype: one pass over them forward, one read and one write
// backward. With s = label smoothing, C classes and weights w (1 if absent):
//   losses[i] = (1 - s) w[t] (L - x[t]) + s / C * sum over c of w[c] (L - x[c]),  L = log sum exp x
//   dx[j] = row_scale ((1 - s) w[t] (p[j] - [j == t]) + s / C (p[j] sum(w) - w[j])), p = exp(x - L)
// A target out of range is reported; its row has loss and gradient 0.

namespace cuda {
namespace {

/// The inputs of both directions besides the logits. C: the statistics dtype.
template <class C> struct Targets {
  Operand classes;
  int64_t step, ignore_index, count;
  const C* weights;      // null: 1
  const C* all_weights;  // their sum; null: count
  C smoothing;
  Fault* fault;

  __device__ C total_weight() const { return all_weights ? *all_weights : C(count); }
  __device__ C weight(int64_t c) const { return weights ? weights[c] : C(1); }
  /// Returns the target of a row, -1 if the row is ignored.
  __device__ int64_t of(int64_t row, bool reports) const {
    const int64_t target = load_as<int64_t>(classes, row * step);
    if (target == ignore_index) return -1;
    if (target >= 0 && target < count) return target;
    if (reports) report(fault, FaultKind::cross_entropy_target, target, count);
    return -1;
  }
};

template <class T>
__global__ void __launch_bounds__(most_row_threads)
    cross_entropy_kernel(const T* logits, int64_t rows, bool warps, bool aligned,
                         Targets<compute_t<T>> targets, compute_t<T>* losses,
                         compute_t<T>* row_weights, compute_t<T>* log_sum_exp) {
  using C = compute_t<T>;
  constexpr int size = row_pack<C>;  // so the sum does not depend on T
  const int64_t n = targets.count;
  const Team team(warps);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, n);
    ExpSum<C> total;
    // Sums w[c] (x[c] - x[0]): smaller numbers than w[c] x[c] if the logits have an offset.
    const C origin = n > 0 ? ExpSum<C>::finite_or_zero(widen(logits[row.begin])) : C(0);
    C weighted = 0, values[size];
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      load_values(logits, row, pack, aligned, values, -std::numeric_limits<C>::infinity());
      total.add(values);
      if (targets.smoothing == C(0)) continue;
      for (int i = 0; i < size; ++i) {
        const int64_t element = pack * size + i;
        if (row.contains(element))
          weighted += targets.weight(element - row.begin) * (values[i] - origin);
      }
    }
    total.join(team);
    if (targets.smoothing != C(0)) weighted = team.sum(weighted);
    if (team.rank != 0) continue;
    total.refuse_infinite();
    const C log_sum = total.log_sum();
    const int64_t target = targets.of(r, true);
    C loss = 0, weight = 0;
    if (target >= 0) {
      weight = targets.weight(target);
      loss = (1 - targets.smoothing) * weight *
             (total.shift - widen(logits[row.begin + target]) + log_sum);
      if (targets.smoothing != C(0))
        loss += targets.smoothing / C(n) *
                (targets.total_weight() * (total.shift - origin + log_sum) - weighted);
    }
    losses[r] = loss, row_weights[r] = weight;
    log_sum_exp[r] = total.shift, log_sum_exp[rows + r] = total.sum;
  }
}

template <class T, class U>
__global__ void __launch_bounds__(most_row_threads)
    cross_entropy_backward_kernel(const T* logits, int64_t rows, bool warps, bool aligned,
                                  Targets<compute_t<T>> targets, const compute_t<T>* log_sum_exp,
                                  const compute_t<T>* row_scale, int64_t scale_step, U* dlogits) {
  using C = compute_t<T>;
  constexpr int size = row_pack<C>;
  const C share = targets.smoothing / C(targets.count);
  const C share_of_all = share * targets.total_weight();
  const Team team(warps);
  for (int64_t r = team.first_row; r < rows; r += team.row_step) {
    const Row<size> row(r, targets.count);
    const int64_t target = targets.of(r, false);
    const C scale = row_scale[r * scale_step], shift = log_sum_exp[r];
    const C normalized = C(1) / log_sum_exp[rows + r];
    const C hard = target < 0 ? C(0) : (1 - targets.smoothing) * targets.weight(target);
    for (int64_t pack = row.first_pack + team.rank; pack < row.pack_end; pack += team.size) {
      C values[size];
      load_values(logits, row, pack, aligned, values);
      const int64_t first = pack * size - row.begin, place = target - first;
      const int hit = place >= 0 && place < size ? int(place) : -1;
#pragma unroll
      for (int i = 0; i < size; ++i) {
        const C p = math::exp(values[i] - shift) * normalized;
        C d = hard * (p - (i == hit ? C(1) : C(0)));
        if (share != C(0)) {
          const bool inside = row.contains(pack * size + i);
          d += share_of_all * p - share * (inside ? targets.weight(first + i) : C(0));
        }
        values[i] = target < 0 ? C(0) : scale * d;  // not d * 0: an ignored row may contain NaN
      }
      store_values(dlogits, row, pack, aligned, values);
    }
  }
}

template <class C>
Targets<C> targets_of(const Context& context, const Tensor& targets, const Tensor& class_weights,
                      const Tensor& all_weights, int64_t classes,
                      const CrossEntropySettings& settings) {
  return {Operand(targets),
          targets.rank() == 0 ? 0 : targets.strides()[0],
          settings.ignore_index,
          classes,
          class_weights.defined() ? class_weights.data<C>() : nullptr,
          all_weights.defined() ? all_weights.data<C>() : nullptr,
          C(settings.label_smoothing),
          context.fault()};
}

/// Returns the sum of the class weights if smoothing needs it.
Tensor sum_of_weights(CudaBackend& backend, const Tensor& class_weights, double smoothing) {
  if (!class_weights.defined() || smoothing == 0) return {};
  Tensor total =
      scratch(backend.context(), Dims::filled(class_weights.rank(), 1), class_weights.dtype());
  backend.reduce(Reduction::sum, class_weights, total);
  return total;
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaBackend::cross_entropy(const Tensor& logits, const Tensor& targets,
                                const Tensor& class_weights, const CrossEntropySettings& settings,
                                Tensor& losses, Tensor& row_weights, Tensor& log_sum_exp) {
  const int64_t rows = targets.numel(), classes = logits.size(-1);
  if (rows == 0) return;
  const Tensor total = sum_of_weights(*this, class_weights, settings.label_smoothing);
  visit_floating(logits.dtype(), "cross_entropy", [&]<class T>() {
    using C = compute_t<T>;
    const RowLaunch start = row_launch(context_, rows, classes, row_pack<C>, held_packs<C>);
    launch(context_, cross_entropy_kernel<T>, start.shape, logits.data<T>(), rows, start.warps,
           packs_aligned(row_pack<C>, logits),
           targets_of<C>(context_, targets, class_weights, total, classes, settings),
           losses.data<C>(), row_weights.data<C>(), log_sum_exp.data<C>());
  });
}

void CudaBackend::cross_entropy_backward(const Tensor& logits, const Tensor& targets,
                                         const Tensor& class_weights,
                                         const CrossEntropySettings& settings,
                                         const Tensor& log_sum_exp, const Tensor& row_scale,
                                         Tensor& dlogits) {
  const int64_t rows = targets.numel(), classes = logits.size(-1);
  if (logits.numel() == 0) return;
  const Tensor total = sum_of_weights(*this, class_weights, settings.label_smoothing);
  const int64_t scale_step = row_scale.numel() == 1 ? 0 : row_scale.strides()[0];
  const auto run = [&]<class T, class U>(const Tensor& x, Tensor& dx) {
    using C = compute_t<T>;
    const RowLaunch start = row_launch(context_, rows, classes, row_pack<C>, held_packs<C>);
    launch(context_, cross_entropy_backward_kernel<T, U>, start.shape, x.data<T>(), rows,
           start.warps, packs_aligned(row_pack<C>, x, dx),
           targets_of<C>(context_, targets, class_weights, total, classes, settings),
           log_sum_exp.data<C>(), row_scale.data<C>(), scale_step, dx.data<U>());
  };
  if (visit_with_wide(logits.dtype(), dlogits.dtype(),
                      [&]<class T, class U>() { run.template operator()<T, U>(logits, dlogits); }))
    return;
  ConvertedResult result(*this, dlogits, logits.dtype());
  visit_floating(logits.dtype(), "cross_entropy",
                 [&]<class T>() { run.template operator()<T, T>(logits, result.tensor()); });
  result.finish();
}

}  // namespace halftone
