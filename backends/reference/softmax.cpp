// Softmax, its logarithm and log(sum(exp)) along rows: y = exp(x - log(sum(exp(x)))). Rows of any
// length are read twice and never copied.
#include <halftone/backends/reference/reference.h>

#include <halftone/backends/reference/row_blocks.h>
#include <halftone/core/math.h>

namespace halftone {

using namespace reference;

namespace {

ExpTotal total_of_row(const Tensor& x, int64_t begin, int64_t n) {
  ExpSum sum;
  each_block(n, [&](int64_t first, int64_t count) {
    double values[block_length];
    load(x, begin + first, count, values);
    sum.add(values, count);
  });
  return sum.total();
}

}  // namespace

void ReferenceBackend::softmax(const Tensor& x, bool logarithm, Tensor& y) {
  const Matrix size = rows_of(x);
  each_row(size.rows, size.columns, [&](int64_t row) {
    const int64_t begin = row * size.columns;
    const ExpTotal total = total_of_row(x, begin, size.columns).or_nan();
    const double sum = total.sum, log_sum = total.log_sum();
    each_block(size.columns, [&](int64_t first, int64_t count) {
      double values[block_length];
      load(x, begin + first, count, values);
      for (int64_t i = 0; i < count; ++i) {
        const double below = values[i] - total.shift;
        values[i] = logarithm ? below - log_sum : elementary::exp(below) / sum;
      }
      store(values, count, y, begin + first);
    });
  });
}

/// softmax: dx = y (dy - sum(y dy)); its logarithm: dx = dy - exp(y) sum(dy).
void ReferenceBackend::softmax_backward(const Tensor& y, const Tensor& dy, bool logarithm,
                                        Tensor& dx) {
  const Matrix size = rows_of(y);
  each_row(size.rows, size.columns, [&](int64_t row) {
    const int64_t begin = row * size.columns;
    double out[block_length], gradient[block_length], sum = 0;
    each_block(size.columns, [&](int64_t first, int64_t count) {
      load(y, begin + first, count, out);
      load(dy, begin + first, count, gradient);
      sum +=
          sum_of(count, [&](int64_t i) { return logarithm ? gradient[i] : out[i] * gradient[i]; });
    });
    each_block(size.columns, [&](int64_t first, int64_t count) {
      load(y, begin + first, count, out);
      load(dy, begin + first, count, gradient);
      for (int64_t i = 0; i < count; ++i)
        out[i] = logarithm ? gradient[i] - elementary::exp(out[i]) * sum : out[i] * (gradient[i] - sum);
      store(out, count, dx, begin + first);
    });
  });
}

void ReferenceBackend::log_sum_exp(const Tensor& x, Tensor& y) {
  const int64_t rows = y.numel(), n = rows == 0 ? 0 : x.numel() / rows;
  each_row(rows, n, [&](int64_t row) { store_one(total_of_row(x, row * n, n).value(), y, row); });
}

}  // namespace halftone
