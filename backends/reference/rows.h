// Sums over the rows of a matrix, column by column, in double: for bias gradients, batch statistics
// and the gradients of normalization weights. Also views a tensor as such a matrix.
#pragma once

#include <cmath>
#include <limits>
#include <utility>

#include <halftone/backends/reference/loops.h>
#include <halftone/core/formats/block_scale.h>
#include <halftone/core/math.h>

namespace halftone::reference {

/// A contiguous tensor, or images in NHWC memory, as a matrix whose columns are the last dimension
/// in memory.
struct Matrix {
  int64_t rows, columns;
};
inline Matrix rows_of(const Tensor& x) {
  const int64_t columns = x.rank() == 0 ? 1 : x.size(-1);
  return {columns == 0 ? 0 : x.numel() / columns, columns};
}
inline Matrix pixels_of(const Tensor& x) {
  const int64_t channels = x.size(1);
  return {channels == 0 ? 0 : x.numel() / channels, channels};
}

/// A sum that also keeps its rounding errors (Neumaier 1974, Knuth's TwoSum).
class CompensatedSum {
 public:
  void add(double x) {
    const double sum = sum_ + x, taken = sum - sum_;
    lost_ += (sum_ - (sum - taken)) + (x - taken);
    sum_ = sum;
  }
  double value() const { return std::isfinite(sum_) ? sum_ + lost_ : sum_; }

 private:
  double sum_ = 0, lost_ = 0;
};

/// Calls body(row, first_column, count, sums) for every row and every block of columns; body adds
/// the row's term of quantity q in column first_column + i to sums[q * columns + i]. Totals have
/// the layout [quantities, columns].
/// Equivalent to: for each row, for each column, totals[q][column] += term(q, row, column).
template <class Body>
void sum_over_rows(Matrix size, int quantities, double* totals, const Body& body) {
  constexpr int64_t rows_at_a_time = 64, columns_at_a_time = 64;
  constexpr int64_t short_sum = 4;  // rows that are added up before they join the total
  const int64_t row_pieces = std::max<int64_t>(1, pieces_of(size.rows, rows_at_a_time));
  const int64_t column_pieces = pieces_of(size.columns, columns_at_a_time);
  const int64_t total_count = quantities * size.columns;
  Workspace<CompensatedSum> partial(row_pieces * total_count);
  Workspace<double> some(row_pieces * total_count);
  std::fill_n(partial.data(), partial.size(), CompensatedSum{});
  std::fill_n(some.data(), some.size(), 0.0);
  parallel_tasks(row_pieces * column_pieces, [&](int64_t task) {
    const int64_t piece = task / column_pieces;
    const int64_t column = task % column_pieces * columns_at_a_time;
    const int64_t count = std::min(columns_at_a_time, size.columns - column);
    const int64_t end = std::min(size.rows, (piece + 1) * rows_at_a_time);
    const int64_t place = piece * total_count + column;
    for (int64_t first = piece * rows_at_a_time; first < end; first += short_sum) {
      for (int64_t row = first; row < std::min(end, first + short_sum); ++row)
        body(row, column, count, some.data() + place);
      for (int q = 0; q < quantities; ++q)
        for (int64_t i = place + q * size.columns; i < place + q * size.columns + count; ++i)
          partial[i].add(std::exchange(some[i], 0.0));
    }
  });
  for (int64_t i = 0; i < total_count; ++i) {
    CompensatedSum sum;
    for (int64_t piece = 0; piece < row_pieces; ++piece)
      sum.add(partial[piece * total_count + i].value());
    totals[i] = sum.value();
  }
}

// Walks along a row in blocks that fit a buffer, and over rows in parallel.

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

// Shared parts of the normalizations: x_hat = (x - mean) rstd with rstd = 1 / sqrt(variance + eps),
// and the gradient
//   dx = rstd (g - mean(g) - x_hat mean(g x_hat)),   g = dy weight
// in which mean() runs over the elements that were normalized together.

struct Moments {
  double mean, variance;  // biased
};

/// Returns the moments of n neighboring elements, in two passes. Uncentered: mean 0 and the mean
/// square.
inline Moments moments_of(const Tensor& x, int64_t begin, int64_t n, bool centred) {
  double values[block_length], sum = 0, squares = 0;
  if (centred)
    each_block(n, [&](int64_t first, int64_t count) {
      load(x, begin + first, count, values);
      sum += sum_of(count, [&](int64_t i) { return values[i]; });
    });
  const double mean = centred ? sum / double(n) : 0.0;
  each_block(n, [&](int64_t first, int64_t count) {
    load(x, begin + first, count, values);
    squares += sum_of(count, [&](int64_t i) { return (values[i] - mean) * (values[i] - mean); });
  });
  return {mean, squares / double(n)};
}

/// The two means in the gradient.
struct GradientMeans {
  double g = 0, g_x_hat = 0;
};

inline void store_sums(const double* sums, int64_t count, const Tensor& y) {
  if (y.defined()) store(sums, count, y, 0);
}

// The scale of a block that depends on its elements or on random numbers, for the reference's
// kernels and surveys.

inline const float* floats_of(const Tensor& x) { return x.defined() ? x.data<float>() : nullptr; }

/// Returns the scale of the block of `height` rows of `width` elements of x from `first` on. x:
/// row-major; amax: the block's largest magnitude.
inline Scale scale_by_elements(const QuantizeNumbers& n, const QuantizeCall& call, const Tensor& x,
                               int64_t first, int64_t height, int64_t width, float amax) {
  Workspace<float> values(height * width);
  for (int64_t i = 0; i < height; ++i)
    load(x, first + i * x.size(-1), width, values.data() + i * width);
  const TensorLevel level = level_of(n, amax_above(n, floats_of(call.amax), first / x.size(-1)));
  return block_scale(n, amax, level, scale_word(call.key, uint64_t(first)),
                     [&](ScaleError error, const auto& term) {
                       return block_total(error, height, width, [&](int64_t i, int64_t j) {
                         return term(values[i * width + j]);
                       });
                     });
}

}  // namespace halftone::reference
