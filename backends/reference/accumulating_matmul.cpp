// Matrix products whose sums stay on a grid; they are computed one after the other
// (core/formats/number_format.h).
#include <halftone/backends/reference/reference.h>

#include <halftone/backends/reference/runs.h>
#include <halftone/core/formats/number_format.h>

namespace halftone {

using namespace reference;

namespace {

/// The part of a matrix that one result needs: the start of its row (column), and the step along k.
struct Line {
  int64_t offset, step;
};
Line line_of(const Tensor& x, int64_t batch, int64_t index, int across, int along) {
  const int64_t batch_step = x.rank() == 3 && x.size(0) > 1 ? x.strides()[0] : 0;
  return {batch * batch_step + index * x.strides()[x.rank() + across],
          x.strides()[x.rank() + along]};
}

float sum_of_products(const Grid& grid, const Accumulator& accumulator, const Tensor& a, Line row,
                      const Tensor& b, Line column, int64_t k) {
  const int64_t chunk = accumulator.chunk > 0 ? accumulator.chunk : std::max<int64_t>(k, 1);
  float total = 0, left[block_length], right[block_length];
  for (int64_t first = 0; first < k; first += chunk) {
    const int64_t end = std::min(k, first + chunk);
    float sum = 0;
    for (int64_t begin = first; begin < end; begin += block_length) {
      const int64_t count = std::min(block_length, end - begin);
      load(a, row.offset + begin * row.step, row.step, count, left);
      load(b, column.offset + begin * column.step, column.step, count, right);
      for (int64_t i = 0; i < count; ++i) {
        const float longer = rounded_sum(sum, rounded_product(left[i], right[i]));
        sum = visit_rounding(accumulator.rounding,
                             [&]<Rounding r>() { return round_on<r, true>(grid, longer, 0); });
      }
    }
    total = rounded_sum(total, sum);
  }
  return total;
}

}  // namespace

void ReferenceBackend::matmul_accumulating(const Tensor& a, const Tensor& b, const Tensor& bias,
                                           const Accumulator& accumulator, Tensor& c) {
  if (c.numel() == 0) return;
  const int64_t m = c.size(-2), n = c.size(-1), k = a.size(-1);
  const Grid grid = grid_of(accumulator.grid, accumulator.rounding);
  parallel_pieces(c.numel() / n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      for (int64_t column = 0; column < n; ++column) {
        const int64_t batch = row / m;
        float sum = sum_of_products(grid, accumulator, a, line_of(a, batch, row % m, -2, -1), b,
                                    line_of(b, batch, column, -1, -2), k);
        if (bias.defined()) {
          float added;
          load(bias, column * bias.strides()[0], 1, &added);
          sum = rounded_sum(sum, added);
        }
        store(&sum, 1, c, row * n + column);
      }
  });
}

}  // namespace halftone
