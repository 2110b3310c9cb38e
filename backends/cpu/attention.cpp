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
        log_sum_exp_(log_sum_exp),
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
    for (int64_t r = 0; r < rows; ++r) finish(head, i0 + r, r);
  }

  /// Turns row r of the block into exp(score - top); rescales the sums so far if the top grows.
  void weigh(int64_t head, int64_t i, int64_t r, int64_t j, int64_t count) {
    const simd::Kernels& kernels = simd_kernels();
    float* row = weights_.row(r);
    int64_t seen = scores_.make(row, head, i, j, count);
    const int64_t whole = Scores::fill_vectors(row, seen, columns_);
    const float before = top_[r];
    const float here = seen > 0 ? scores_.factor() * kernels.max(row, whole) : -infinity;
    const float top = here > before || here != here ? here : before;
    if (top == -infinity) {
      seen = 0;
    } else {
      const float sum = kernels.exp_scaled(row, scores_.factor(), top, 1, row, whole);
      const float shrink = top == before ? 1.0f : math::exp(before - top);
      top_[r] = top, total_[r] = total_[r] * shrink + sum;
      if (shrink != 1 && j > 0) kernels.scale(shrink, sums_.data() + r * call_.ev, call_.ev);
      scores_.drop(row, head, i, j, seen);
    }
    weights_.complete(r, seen, count);
  }

  void finish(int64_t head, int64_t i, int64_t r) {
    float* sums = sums_.data() + r * call_.ev;
    if (total_[r] != 0) simd_kernels().scale(1 / total_[r], sums, call_.ev);
    narrow(sums, call_.ev, y_, offset_of(y_, head) + i * y_.strides()[2]);
    const int64_t row = head * call_.l + i;
    float* const statistics = log_sum_exp_.data<float>();
    if (log_sum_exp_.shape()[0] == 1) {
      statistics[row] = total_[r] == 0 ? infinity : top_[r] + math::log(total_[r]);
    } else {
      statistics[row] = total_[r] == 0 ? infinity : top_[r];
      statistics[call_.heads * call_.l + row] = total_[r] == 0 ? 1 : total_[r];
    }
  }

  const int64_t rows_ = Blocks::block_rows(), columns_ = Blocks::block_columns();
  const Call& call_;
  Tensor &y_, &log_sum_exp_;
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
#pragma omp parallel
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

void CpuBackend::attention(const Tensor& q_in, const Tensor& k_in, const Tensor& v_in,
                           const Tensor& mask, const AttentionSettings& settings, Tensor& y,
                           Tensor& log_sum_exp) {
  const Tensor q = cpu::without_f16(q_in), k = cpu::without_f16(k_in), v = cpu::without_f16(v_in);
  const cpu::attention::Call call{q, k, v, mask, settings};
  if (!cpu::is_f32_or_short(q) || call.any_empty())
    return ReferenceBackend::attention(q_in, k_in, v_in, mask, settings, y, log_sum_exp);
  cpu::attention::with_blocks(
      q.dtype(), [&]<class Blocks> { cpu::attention::forward_all<Blocks>(call, y, log_sum_exp); });
}

}  // namespace halftone
