// Matrix products whose sums stay on a grid, with the SIMD kernel: a row of sums at a time.
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/tensor.h>

namespace halftone {

namespace {
/// Returns x as floats with unit stride along the last dimension.
Tensor float_rows(const Tensor& x) {
  if (x.dtype() == f32 && x.strides()[x.rank() - 1] == 1) return x;
  const MemoryScope scope(MemoryUse::workspace);
  Tensor rows = empty(x.shape(), f32, x.device());
  backend_for(x).copy(x, rows);
  return rows;
}

/// Returns the start of a batch's matrix, and the step from row to row.
const float* floats_of_matrix(const Tensor& x, int64_t batch) {
  return x.data<float>() + (x.rank() == 3 && x.size(0) > 1 ? batch * x.strides()[0] : 0);
}
}  // namespace

void CpuBackend::matmul_accumulating(const Tensor& a, const Tensor& b, const Tensor& bias,
                                     const Accumulator& accumulator, Tensor& c) {
  if (c.numel() == 0) return;
  if (!cpu::all_f32_or_short(a, b, bias, c))
    return ReferenceBackend::matmul_accumulating(a, b, bias, accumulator, c);
  const int64_t m = c.size(-2), n = c.size(-1), k = a.size(-1);
  const Grid grid = grid_of(accumulator.grid, accumulator.rounding);
  const int64_t chunk = accumulator.chunk > 0 ? accumulator.chunk : std::max<int64_t>(k, 1);
  const Tensor left = float_rows(a), right = float_rows(b);
  const int64_t a_step = left.strides()[left.rank() - 2],
                b_step = right.strides()[right.rank() - 2];
  // A piece of a row whose sums stay in the first-level cache while all rows of b are read.
  constexpr int64_t width = 256;
  const int64_t pieces = reference::pieces_of(n, width);
  cpu::parallel_tasks(c.numel() / n * pieces, [&, &kernels = simd_kernels()](int64_t task) {
    const int64_t row = task / pieces, batch = row / m;
    const int64_t column = task % pieces * width, count = std::min(width, n - column);
    alignas(64) float totals[width], sums[width];
    std::fill_n(totals, count, 0.0f);
    const float* const a_row = floats_of_matrix(left, batch) + row % m * a_step;
    const float* const b_rows = floats_of_matrix(right, batch) + column;
    for (int64_t first = 0; first < k; first += chunk) {
      std::fill_n(sums, count, 0.0f);
      kernels.accumulate_on(grid, accumulator.rounding, a_row + first, std::min(chunk, k - first),
                            b_rows + first * b_step, b_step, sums, count);
      kernels.accumulate(sums, totals, count);
    }
    if (bias.defined()) {
      float added[width];
      reference::load(bias, column * bias.strides()[0], bias.strides()[0], count, added);
      kernels.accumulate(added, totals, count);
    }
    reference::store(totals, count, c, row * n + column);
  });
}

}  // namespace halftone
