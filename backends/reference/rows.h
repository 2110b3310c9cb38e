// Sums over the rows of a matrix, column by column, in double: for bias gradients, batch statistics
// and the gradients of normalization weights. Also views a tensor as such a matrix.
#pragma once

#include <cmath>
#include <utility>

#include <halftone/backends/reference/runs.h>

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

}  // namespace halftone::reference
