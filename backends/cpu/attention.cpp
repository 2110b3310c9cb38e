// Attention in blocks, after Dao et al. 2022 (FlashAttention): a block of queries meets the keys
// block by block. Only one block of the weights exists at a time, in f32, in the thread's cache.
// Each row keeps its largest score and its sum so far; the sum is rescaled when the largest score
// grows. Equivalent to: backends/reference/products.cpp.
#include <cmath>

#include <halftone/backends/cpu/attention_blocks.h>
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/team.h>
#include <halftone/core/math.h>

namespace halftone {

namespace cpu::attention {
namespace {
constexpr float infinity = std::numeric_limits<float>::infinity();

/// The buffers of one thread for forward.
template <class Blocks> class Forward {
 public:
  Forward(const Call& call, Tensor& y, Tensor& log_sum_exp)
      : call_(call),
        y_(y),
        statistics_(log_sum_exp.data<float>()),
        one_statistic_(log_sum_exp.shape()[0] == 1),
        scores_(call),
        queries_(Blocks::packed_rows(rows_, call.e)),
        keys_(Blocks::packed_columns(call.e, call.s)),
        weights_packed_(Blocks::packed_rows(rows_, columns_)),
        values_(call.s, call.ev),
        weights_(rows_, columns_),
        sums_(rows_ * call.ev),
        top_(rows_),
        total_(rows_) {}

  /// Computes queries begin to end of a head.
  void run(int64_t head, int64_t begin, int64_t end) {
    const int64_t keys = call_.keys_before(end);
    Blocks::pack_columns(transposed(rows_of(call_.k, head / call_.group)), call_.e, keys,
                         keys_.data());
    values_.pack(rows_of(call_.v, head / call_.group), keys);
    for (int64_t i = begin; i < end; i += rows_) block(head, i, std::min(rows_, end - i));
  }

 private:
  void block(int64_t head, int64_t i0, int64_t rows) {
    const int64_t e = call_.e, ev = call_.ev, keys = call_.keys_before(i0 + rows);
    Blocks::pack_rows(rows_of(call_.q, head, i0), rows, e, queries_.data());
    std::fill_n(top_.data(), rows, -infinity), std::fill_n(total_.data(), rows, 0.0f);
    std::fill_n(sums_.data(), rows * ev, 0.0f);
    for (int64_t j = 0; j < keys; j += columns_) {
      const int64_t count = std::min(columns_, keys - j);
      Blocks::multiply(queries_.data(), keys_.data() + Blocks::packed_columns(e, j),
                       {rows, count, e, e, weights_.row(0), columns_, false, call_.chain(e)});
      for (int64_t r = 0; r < rows; ++r) weigh(head, i0 + r, r, j, count);
      Blocks::pack_rows(weights_.matrix(), rows, count, weights_packed_.data());
      Blocks::multiply(
          weights_packed_.data(), values_.from(j),
          {rows, ev, count, values_.depth(j), sums_.data(), ev, true, call_.chain(count)});
    }
    const int64_t step = y_.strides()[2], first = offset_of(y_, head) + i0 * step;
    for (int64_t r = 0; r < rows; ++r) finish(head * call_.l + i0 + r, r, first + r * step);
  }

  /// Turns row r of the block into exp(score - top); rescales the sums so far if the top grows.
  void weigh(int64_t head, int64_t i, int64_t r, int64_t j, int64_t count) {
    float* row = weights_.row(r);
    int64_t seen = scores_.make(row, head, i, j, count);
    const int64_t whole = Scores::fill_vectors(row, seen, columns_);
    const float before = top_[r];
    const float here = seen > 0 ? scores_.factor() * kernels_.max(row, whole) : -infinity;
    const float top = here > before || here != here ? here : before;
    if (top == -infinity) {
      seen = 0;
    } else {
      const float sum = kernels_.exp_scaled(row, scores_.factor(), top, 1, row, whole);
      const float shrink = top == before         ? 1.0f
                           : before == -infinity ? 0.0f
                                                 : math::exp(before - top);
      top_[r] = top, total_[r] = total_[r] * shrink + sum;
      if (shrink != 1 && j > 0) kernels_.scale(shrink, sums_.data() + r * call_.ev, call_.ev);
      scores_.drop(row, head, i, j, seen);
    }
    weights_.complete(r, seen, count);
  }

  /// Writes row r of the block, which is row `row` of all heads and begins at `offset` of y.
  void finish(int64_t row, int64_t r, int64_t offset) {
    float* sums = sums_.data() + r * call_.ev;
    if (total_[r] != 0) kernels_.scale(1 / total_[r], sums, call_.ev);
    narrow(sums, call_.ev, y_, offset);
    if (one_statistic_) {
      statistics_[row] = total_[r] == 0 ? infinity : top_[r] + math::log(total_[r]);
    } else {
      statistics_[row] = total_[r] == 0 ? infinity : top_[r];
      statistics_[call_.heads * call_.l + row] = total_[r] == 0 ? 1 : total_[r];
    }
  }

  const int64_t rows_ = Blocks::block_rows(), columns_ = Blocks::block_columns();
  const Call& call_;
  const simd::Kernels& kernels_ = simd_kernels();
  Tensor& y_;
  float* statistics_;
  bool one_statistic_;  // log_sum_exp, else the largest scores and then the sums
  Scores scores_;
  Workspace<typename Blocks::Packed> queries_, keys_, weights_packed_;
  PackedKeys<Blocks> values_;
  ComputedBlock<Blocks> weights_;
  Workspace<float> sums_, top_, total_;
};

template <class Blocks> void forward_all(const Call& call, Tensor& y, Tensor& log_sum_exp) {
  // Rows do not depend on each other, so a few heads can be split among the threads.
  const int64_t pieces = std::min(reference::pieces_of(cpu_threads(), call.heads),
                                  reference::pieces_of(call.l, Blocks::block_rows()));
  const int64_t rows = reference::pieces_of(call.l, pieces);
  reference::RegionError error;
#pragma omp parallel if (call.is_large())
  {
    reference::OfThread<Forward<Blocks>> forward(error, call, y, log_sum_exp);
#pragma omp for schedule(dynamic)
    for (int64_t task = 0; task < call.heads * pieces; ++task) {
      const int64_t begin = task % pieces * rows;
      if (begin < call.l && forward)
        forward->run(task / pieces, begin, std::min(call.l, begin + rows));
    }
  }
  error.rethrow();
}
}  // namespace
}  // namespace cpu::attention

void CpuBackend::attention(const AttentionCall& call) {
  const Tensor q = cpu::without_f16(call.q), k = cpu::without_f16(call.k),
               v = cpu::without_f16(call.v);
  const cpu::attention::Call inner{q, k, v, call.mask, call.settings};
  if (!cpu::is_f32_or_short(q) || inner.any_empty()) return ReferenceBackend::attention(call);
  cpu::attention::with_blocks(q.dtype(), [&]<class Blocks> {
    cpu::attention::forward_all<Blocks>(inner, call.y, call.log_sum_exp);
  });
}

// The gradients of attention, in blocks, after Dao et al. 2022: weights are recomputed from the
// statistics of their rows. A thread takes whole heads, because the gradients of keys and values
// are sums over all queries; the result does not depend on the number of threads.
//   ds = scale w (g - mean),  mean = sum over keys of w g
// is a small difference of large numbers if there are few weights or one is near 1. If all keys of
// the rows fit into one block, the mean is computed from w and g themselves; otherwise from y dy,
// which is equal except for the rounding of y.
// Equivalent to: backends/reference/products.cpp.

namespace cpu::attention {
namespace {
/// The buffers of one thread.
template <class Blocks> class Backward {
 public:
  Backward(const Call& call, const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
           Tensor& dq, Tensor& dk, Tensor& dv)
      : call_(call),
        y_(y),
        statistics_(log_sum_exp.data<float>()),
        one_statistic_(log_sum_exp.shape()[0] == 1),
        dy_(dy),
        dq_(dq),
        dk_(dk),
        dv_(dv),
        scores_(call),
        keys_by_depth_(Blocks::packed_columns(call.e, call.s)),
        values_by_depth_(Blocks::packed_columns(call.ev, call.s)),
        query_rows_(Blocks::packed_rows(rows_, call.e)),
        dy_rows_(Blocks::packed_rows(rows_, call.ev)),
        query_columns_(Blocks::packed_columns(rows_, call.e)),
        dy_columns_(Blocks::packed_columns(rows_, call.ev)),
        computed_(
            std::max(Blocks::packed_rows(rows_, columns_), Blocks::packed_rows(columns_, rows_))),
        keys_(call.s, call.e),
        weights_(rows_, columns_),
        gradients_(rows_, columns_),
        dqueries_(rows_ * call.e),
        dkeys_(call.s * call.e),
        dvalues_(call.s * call.ev),
        mean_(rows_),
        total_(rows_),
        row_(2 * call.ev) {}

  /// Computes a head of keys and values, with all heads of queries that share it.
  void run(int64_t key_head) {
    const int64_t keys = call_.keys_before(call_.l);
    const simd::Matrix k = rows_of(call_.k, key_head), v = rows_of(call_.v, key_head);
    Blocks::pack_columns(transposed(k), call_.e, keys, keys_by_depth_.data());
    Blocks::pack_columns(transposed(v), call_.ev, keys, values_by_depth_.data());
    keys_.pack(k, keys);
    std::fill_n(dkeys_.data(), dkeys_.size(), 0.0f);
    std::fill_n(dvalues_.data(), dvalues_.size(), 0.0f);
    for (int64_t head = key_head * call_.group; head < (key_head + 1) * call_.group; ++head)
      for (int64_t i = 0; i < call_.l; i += rows_) block(head, i, std::min(rows_, call_.l - i));
    write(dkeys_.data(), call_.s, dk_, key_head, 0);
    write(dvalues_.data(), call_.s, dv_, key_head, 0);
  }

 private:
  void block(int64_t head, int64_t i0, int64_t rows) {
    const int64_t e = call_.e, ev = call_.ev, keys = call_.keys_before(i0 + rows);
    const simd::Matrix q = rows_of(call_.q, head, i0), dy = rows_of(dy_, head, i0);
    Blocks::pack_rows(q, rows, e, query_rows_.data());
    Blocks::pack_rows(dy, rows, ev, dy_rows_.data());
    Blocks::pack_columns(q, rows, e, query_columns_.data());
    Blocks::pack_columns(dy, rows, ev, dy_columns_.data());
    const int64_t length = reference::pieces_of(keys, columns_) * columns_;
    const bool at_once = rows * length <= rows_ * columns_;
    for (ComputedBlock<Blocks>* block : {&weights_, &gradients_})
      block->shape_as(at_once ? length : columns_);
    if (at_once) std::fill_n(mean_.data(), rows, 0.0f), std::fill_n(total_.data(), rows, 0.0f);
    else
      for (int64_t r = 0; r < rows; ++r) mean_[r] = mean_from_result(head, i0 + r);
    for (int64_t j = 0; j < keys; j += columns_) {
      const int64_t count = std::min(columns_, keys - j), column = at_once ? j : 0;
      Blocks::multiply(
          query_rows_.data(), keys_by_depth_.data() + Blocks::packed_columns(e, j),
          {rows, count, e, e, weights_.row(0, column), weights_.stride(), false, call_.chain(e)});
      Blocks::multiply(dy_rows_.data(), values_by_depth_.data() + Blocks::packed_columns(ev, j),
                       {rows, count, ev, ev, gradients_.row(0, column), gradients_.stride(), false,
                        call_.chain(ev)});
      for (int64_t r = 0; r < rows; ++r) weigh(head, i0 + r, r, j, count, at_once);
      if (!at_once) add_gradients(head, i0, rows, j, count, 0);
    }
    // Divides by the sum of the weights, which rounding moves slightly from 1: with one key, ds is
    // 0.
    for (int64_t r = 0; at_once && r < rows; ++r)
      if (total_[r] != 0) mean_[r] /= total_[r];
    for (int64_t j = 0; at_once && j < keys; j += columns_)
      add_gradients(head, i0, rows, j, std::min(columns_, keys - j), j);
    write(dqueries_.data(), rows, dq_, head, i0);
  }

  /// For `count` keys from j on, whose weights begin at a column: dv += w^T dy, dk += ds^T q, dq +=
  /// ds k.
  void add_gradients(int64_t head, int64_t i0, int64_t rows, int64_t j, int64_t count,
                     int64_t column) {
    const int64_t e = call_.e, ev = call_.ev;
    for (int64_t r = 0; r < rows; ++r) differentiate(head, i0 + r, r, j, count, column);
    Blocks::pack_rows(transposed(weights_.matrix(column)), count, rows, computed_.data());
    Blocks::multiply(computed_.data(), dy_columns_.data(),
                     {count, ev, rows, rows, dvalues_.data() + j * ev, ev, true});
    Blocks::pack_rows(transposed(gradients_.matrix(column)), count, rows, computed_.data());
    Blocks::multiply(computed_.data(), query_columns_.data(),
                     {count, e, rows, rows, dkeys_.data() + j * e, e, true});
    Blocks::pack_rows(gradients_.matrix(column), rows, count, computed_.data());
    Blocks::multiply(
        computed_.data(), keys_.from(j),
        {rows, e, count, keys_.depth(j), dqueries_.data(), e, j > 0, call_.chain(count)});
  }

  /// Returns the sum over keys of weight times its gradient, which is y dy.
  float mean_from_result(int64_t head, int64_t i) {
    const int64_t n = call_.ev;
    float* buffer = row_.data();
    const auto row_of = [&](const Tensor& x, float* to) {
      return floats(x, offset_of(x, head) + i * x.strides()[2], 1, n, to);
    };
    return simd_kernels().dot(row_of(y_, buffer), row_of(dy_, buffer + n), n);
  }

  /// Computes row r: the weights again, and their gradients.
  void weigh(int64_t head, int64_t i, int64_t r, int64_t j, int64_t count, bool at_once) {
    float *w = weights_.row(r, at_once ? j : 0), *g = gradients_.row(r, at_once ? j : 0);
    const int64_t seen = scores_.make(w, head, i, j, count), row = head * call_.l + i;
    const float share = one_statistic_ ? 1.0f : 1.0f / statistics_[call_.heads * call_.l + row];
    const int64_t whole = Scores::fill_vectors(w, seen, count);
    const float sum = kernels_.exp_scaled(w, scores_.factor(), statistics_[row], share, w, whole);
    scores_.drop(g, head, i, j, seen);
    if (at_once) mean_[r] += kernels_.dot(w, g, seen), total_[r] += sum;
  }

  /// Computes row r: gradients of scores from gradients of weights; applies dropout to the weights.
  void differentiate(int64_t head, int64_t i, int64_t r, int64_t j, int64_t count, int64_t column) {
    float *w = weights_.row(r, column), *g = gradients_.row(r, column);
    const int64_t seen = scores_.seen(i, j, count);
    kernels_.softmax_gradient(w, g, mean_[r], float(call_.settings.scale), g, seen);
    scores_.drop(w, head, i, j, seen);
    weights_.complete(r, seen, count, column), gradients_.complete(r, seen, count, column);
  }

  static void write(const float* rows, int64_t count, const Tensor& to, int64_t head,
                    int64_t first) {
    const int64_t n = to.shape()[3], step = to.strides()[2],
                  offset = offset_of(to, head) + first * step;
    if (step == n) return narrow(rows, count * n, to, offset);
    for (int64_t i = 0; i < count; ++i) narrow(rows + i * n, n, to, offset + i * step);
  }

  const int64_t rows_ = Blocks::block_rows(), columns_ = Blocks::block_columns();
  const Call& call_;
  const simd::Kernels& kernels_ = simd_kernels();
  const Tensor& y_;
  const float* statistics_;
  bool one_statistic_;
  const Tensor& dy_;
  Tensor &dq_, &dk_, &dv_;
  Scores scores_;
  Workspace<typename Blocks::Packed> keys_by_depth_, values_by_depth_, query_rows_, dy_rows_,
      query_columns_, dy_columns_, computed_;
  PackedKeys<Blocks> keys_;
  ComputedBlock<Blocks> weights_, gradients_;
  Workspace<float> dqueries_, dkeys_, dvalues_, mean_, total_, row_;
};

template <class Blocks>
void backward_all(const Call& call, const Tensor& y, const Tensor& log_sum_exp, const Tensor& dy,
                  Tensor& dq, Tensor& dk, Tensor& dv) {
  reference::RegionError error;
#pragma omp parallel if (call.is_large())
  {
    reference::OfThread<Backward<Blocks>> backward(error, call, y, log_sum_exp, dy, dq, dk, dv);
#pragma omp for schedule(dynamic)
    for (int64_t head = 0; head < call.heads / call.group; ++head)
      if (backward) backward->run(head);
  }
  error.rethrow();
}
}  // namespace
}  // namespace cpu::attention

void CpuBackend::attention_backward(const AttentionBackwardCall& call) {
  const Tensor q = cpu::without_f16(call.q), k = cpu::without_f16(call.k),
               v = cpu::without_f16(call.v), dy = cpu::without_f16(call.dy);
  const cpu::attention::Call inner{q, k, v, call.mask, call.settings};
  if (!cpu::is_f32_or_short(q) || inner.any_empty())
    return ReferenceBackend::attention_backward(call);
  cpu::attention::with_blocks(q.dtype(), [&]<class Blocks> {
    cpu::attention::backward_all<Blocks>(inner, call.y, call.log_sum_exp, dy, call.dq, call.dk,
                                         call.dv);
  });
}

}  // namespace halftone
