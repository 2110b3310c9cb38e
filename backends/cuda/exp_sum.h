// log(sum(exp(x))) in one pass: the sum so far is rescaled when the largest value grows (Milakov &
// Gimelshein 2018). It stays in two parts, shift + log(sum): adding them would lose the logarithm
// if values are huge.
#pragma once

#include <halftone/backends/cuda/rows.h>
#include <halftone/core/math.h>

namespace halftone::cuda {

template <class C> struct ExpSum {
  C largest = -std::numeric_limits<C>::infinity(), shift = 0, sum = 0;

  /// Infinite values are not subtracted: exp(inf) and exp(-inf) are correct without it.
  static __device__ C finite_or_zero(C value) {
    return math::abs(value) <= std::numeric_limits<C>::max() ? value : C(0);
  }
  template <int size> __device__ void add(const C (&values)[size]) {
    C most = values[0];
#pragma unroll
    for (int i = 1; i < size; ++i) most = values[i] > most || most != most ? values[i] : most;
    if (most > largest) {
      largest = most;
      rescale(finite_or_zero(largest));
    }
#pragma unroll
    for (int i = 0; i < size; ++i) sum += math::exp(values[i] - shift);
  }
  /// Joins the sums of all threads of the row; each of them gets the result.
  __device__ void join(const Team& team) {
    largest = team.reduce(largest, Max{}, -std::numeric_limits<C>::infinity());
    rescale(finite_or_zero(largest));
    sum = team.sum(sum);
  }
  __device__ C log_sum() const { return math::log(sum); }
  /// Makes the sum NaN if softmax is NaN: with +inf somewhere, or -inf everywhere.
  __device__ void refuse_infinite() {
    if (!(sum > C(0) && sum <= std::numeric_limits<C>::max()))
      sum = std::numeric_limits<C>::quiet_NaN();
  }

 private:
  __device__ void rescale(C to) {
    if (sum != C(0)) sum *= math::exp(shift - to);
    shift = to;
  }
};

}  // namespace halftone::cuda
