// Walks along a row in blocks that fit a buffer, and over rows in parallel.
#pragma once

#include <cmath>
#include <limits>

#include <halftone/backends/reference/rows.h>
#include <halftone/core/math.h>

namespace halftone::reference {

/// Calls body(first, count) for the blocks of 0..n.
template <class Body> void each_block(int64_t n, const Body& body) {
  for (int64_t first = 0; first < n; first += block_length)
    body(first, std::min(block_length, n - first));
}

/// Calls body(row) for all rows of n elements, in parallel.
template <class Body> void each_row(int64_t rows, int64_t n, const Body& body) {
  const int64_t rows_at_a_time = std::max<int64_t>(1, grain_length / std::max<int64_t>(1, n));
  parallel_pieces(rows, rows_at_a_time, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

/// Returns the sum of term(i) for i < n, in eight partial sums: the chains of additions are shorter
/// and do not wait for each other.
template <class Term> double sum_of(int64_t n, const Term& term) {
  constexpr int64_t ways = 8;
  double sums[ways]{};
  int64_t i = 0;
  for (; i + ways <= n; i += ways)
    for (int64_t k = 0; k < ways; ++k) sums[k] += term(i + k);
  for (; i < n; ++i) sums[i % ways] += term(i);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// The sum of exp(x) as sum exp(shift). It stays in two parts because their logarithms, added and
/// rounded, would lose the differences between values if these are huge.
struct ExpTotal {
  double shift, sum;
  double log_sum() const { return elementary::log(sum); }
  double value() const { return shift + log_sum(); }  // log(sum of exp(x))
  /// Returns NaN if softmax is NaN: with +inf somewhere, or -inf everywhere.
  ExpTotal or_nan() const {
    return {shift, sum > 0 && !std::isinf(sum) ? sum : std::numeric_limits<double>::quiet_NaN()};
  }
};

/// Sums exp(x) over values that arrive in blocks, in one pass. When the largest value grows, the
/// sum so far is rescaled (Milakov & Gimelshein 2018).
class ExpSum {
 public:
  void add(const double* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      if (values[i] > largest_) largest_ = values[i];
    // Infinite values are not subtracted: exp(inf) and exp(-inf) are correct without it.
    const double shift = std::isfinite(largest_) ? largest_ : 0.0;
    if (sum_ != 0) sum_ *= elementary::exp(shift_ - shift);
    sum_ += sum_of(count, [&](int64_t i) { return elementary::exp(values[i] - shift); });
    shift_ = shift;
  }
  ExpTotal total() const { return {shift_, sum_}; }

 private:
  double largest_ = -std::numeric_limits<double>::infinity(), shift_ = 0, sum_ = 0;
};

}  // namespace halftone::reference
