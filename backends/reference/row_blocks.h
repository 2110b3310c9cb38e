// Walking along one row in blocks that fit a buffer, and rows in parallel.
#pragma once

#include <cmath>
#include <limits>

#include <halftone/backends/reference/columns.h>

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

/// log(sum of exp(x)) = shift + log_sum. In two parts: their sum would lose log_sum where values
/// are huge.
struct LogTotal {
  double shift, log_sum;
  double value() const { return shift + log_sum; }
};

/// Sums exp(x) over values that arrive in blocks, in one pass: what was summed is rescaled when the
/// largest value grows (Milakov & Gimelshein 2018).
class ExpSum {
 public:
  void add(const double* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i)
      if (values[i] > largest_) largest_ = values[i];
    // Infinite values are not subtracted: exp(inf) and exp(-inf) are right as they are.
    const double shift = std::isfinite(largest_) ? largest_ : 0.0;
    if (sum_ != 0) sum_ *= std::exp(shift_ - shift);
    for (int64_t i = 0; i < count; ++i) sum_ += std::exp(values[i] - shift);
    shift_ = shift;
  }
  LogTotal total() const { return {shift_, std::log(sum_)}; }

 private:
  double largest_ = -std::numeric_limits<double>::infinity(), shift_ = 0, sum_ = 0;
};

}  // namespace halftone::reference
