// Cross-entropy from logits in their own dtype: one pass over them forward, one read and one write
// backward. With s = label smoothing, C classes and weights w (1 if absent):
//   losses[i] = (1 - s) w[t] (L - x[t]) + s / C * sum over c of w[c] (L - x[c]),  L = log sum exp x
//   dx[j] = row_scale ((1 - s) w[t] (p[j] - [j == t]) + s / C (p[j] sum(w) - w[j])), p = exp(x - L)
// A target out of range is reported; its row has loss and gradient 0.
#include <halftone/backends/cuda/conversion.h>
#include <halftone/backends/cuda/cuda_backend.h>
#include <halftone/backends/cuda/exp_sum.h>

namespace halftone {

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
  constexpr int size = row_pack<T>;
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

template <class T>
__global__ void __launch_bounds__(most_row_threads)
    cross_entropy_backward_kernel(const T* logits, int64_t rows, bool warps, bool aligned,
                                  Targets<compute_t<T>> targets, const compute_t<T>* log_sum_exp,
                                  const compute_t<T>* row_scale, int64_t scale_step, T* dlogits) {
  using C = compute_t<T>;
  constexpr int size = row_pack<T>;
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
    const RowLaunch start = row_launch(context_, rows, classes, row_pack<T>, held_packs<T>);
    launch(context_, cross_entropy_kernel<T>, start.shape, logits.data<T>(), rows, start.warps,
           packs_aligned(row_pack<T>, logits),
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
  ConvertedResult result(*this, dlogits, logits.dtype());
  const int64_t scale_step = row_scale.numel() == 1 ? 0 : row_scale.strides()[0];
  visit_floating(logits.dtype(), "cross_entropy", [&]<class T>() {
    using C = compute_t<T>;
    const RowLaunch start = row_launch(context_, rows, classes, row_pack<T>, held_packs<T>);
    launch(context_, cross_entropy_backward_kernel<T>, start.shape, logits.data<T>(), rows,
           start.warps, packs_aligned(row_pack<T>, logits, result.tensor()),
           targets_of<C>(context_, targets, class_weights, total, classes, settings),
           log_sum_exp.data<C>(), row_scale.data<C>(), scale_step, result.tensor().data<T>());
  });
  result.finish();
}

}  // namespace halftone
