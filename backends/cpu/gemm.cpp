// The product of two matrices, in the blocks of gemm_blocking.h.
#include <halftone/backends/cpu/gemm_blocking.h>

#include <halftone/backends/cpu/attention_blocks.h>
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/gemm_blocking_bf16.h>
#include <halftone/backends/cpu/onednn/onednn.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/device.h>
#include <halftone/core/formats/number_format.h>
#include <halftone/core/formats/sums.h>
#include <halftone/core/tensor.h>

namespace halftone::cpu {

void gemm(const simd::Matrix& a, const simd::Matrix& b, int64_t m, int64_t n, int64_t k,
          const Product& to) {
  const simd::Kernels& kernels = simd_kernels();
  // A single row of tiles reads every element of b once, so packing b would only copy it.
  const bool in_place = m <= kernels.tile_rows && b.element == simd::Element::f32 && b.column == 1;
  blocked_product(
      m, n, k, to,
      [&](int64_t row, int64_t rows, int64_t depth, int64_t count, float* panels) {
        kernels.pack_rows(part(a, row, depth), rows, count, panels);
      },
      [&](int64_t column, int64_t columns, int64_t depth, int64_t count, float* buffer) -> Panels {
        const simd::Matrix source = part(b, depth, column);
        if (in_place && columns == kernels.tile_columns)
          return {static_cast<const float*>(source.data), b.row};
        kernels.pack_columns(source, count, columns, buffer);
        return {buffer, kernels.tile_columns};
      });
}

// The product of two bf16 matrices, in the blocks of gemm_blocking_bf16.h.

namespace {
/// The stride of a dimension of size 1 is arbitrary, so such a matrix may have no unit stride.
simd::Matrix with_unit_stride(simd::Matrix x, int64_t rows, int64_t columns) {
  if (columns == 1) x.column = 1;
  else if (rows == 1 && x.column != 1) x.row = 1;
  return x;
}
}  // namespace

void bf16_gemm(const simd::Matrix& a, const simd::Matrix& b_in, int64_t m, int64_t n, int64_t k,
               const Bf16Product& to) {
  const simd::Matrix b = with_unit_stride(b_in, k, n);
  bf16_product(m, n, k, to, MatrixRows(with_unit_stride(a, m, k)),
               [&](const panel_product::Part& x, uint16_t* panels) {
                 simd::panels::pack_columns(part(b, x.start, x.j), x.depth, x.columns, panels);
               });
}

}  // namespace halftone::cpu

// Matrix products: f32 by the own kernel; bf16 by the own kernel for AMX and AVX512-BF16, or by
// oneDNN if that is faster; other short floats in f32, widened when they are packed; f64 by the
// reference.

namespace halftone {

namespace {
simd::Matrix matrix_of(const Tensor& x, int64_t batch) {
  const int64_t offset = x.rank() == 3 ? batch * x.strides()[0] : 0;
  return {x.raw_data() + offset * size_of(x.dtype()),
          x.dtype() == f32 ? simd::Element::f32 : simd::Element::bf16, x.strides()[-2],
          x.strides()[-1]};
}

int64_t batches_of(const Tensor& c) { return c.rank() == 3 ? c.shape()[0] : 1; }

/// Returns whether there are many products of depth k that are too small for several threads.
bool one_per_thread(const Tensor& c, int64_t k) {
  return batches_of(c) >= 4 && c.numel() / batches_of(c) * k < (int64_t(1) << 24);
}

/// Calls product(i, parallel) for each matrix of c.
template <class Product> void each_product(const Tensor& c, int64_t k, const Product& product) {
  const int64_t batches = batches_of(c);
  if (one_per_thread(c, k))
    return cpu::parallel_tasks(batches, [&](int64_t i) { product(i, false); });
  for (int64_t i = 0; i < batches; ++i) product(i, true);
}

void product_in_bf16(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& c) {
  const int64_t m = c.shape()[-2], n = c.shape()[-1], k = a.shape()[-1];
  const cpu::WholeInput bias_row(bias);
  const bool direct = c.dtype() == bf16 && k <= cpu::bf16_depth;
  const Tensor staged = direct ? Tensor() : c;
  const cpu::WholeOutput floats(staged);
  std::byte* data = direct ? c.raw_data() : reinterpret_cast<std::byte*>(floats.data());
  const int64_t bytes = direct ? 2 : 4;
  each_product(c, k, [&](int64_t i, bool parallel) {
    cpu::bf16_gemm(matrix_of(a, i), matrix_of(b, i), m, n, k,
                   {.c = data + i * m * n * bytes,
                    .bf16 = direct,
                    .stride = n,
                    .bias = bias_row.data(),
                    .parallel = parallel});
  });
}
}  // namespace

void CpuBackend::matmul(const Tensor& a_in, const Tensor& b_in, const Tensor& bias, Tensor& c) {
  const int64_t m = c.shape()[-2], n = c.shape()[-1], k = a_in.shape()[-1];
  if (!cpu::all_f32_or_short(a_in, b_in, bias, c) || k == 0 || c.numel() == 0)
    return ReferenceBackend::matmul(a_in, b_in, bias, c);
  const bool all_bf16 = a_in.dtype() == bf16 && b_in.dtype() == bf16;
  // For many small products, oneDNN computes about a fifth more per second than the own kernel.
  const bool own_first = all_bf16 && use_amx() && !one_per_thread(c, k);
  if (own_first) return product_in_bf16(a_in, b_in, bias, c);
  if (all_bf16 && has_bf16_products()) {
    if (!onednn::matmul(a_in, b_in, bias, c)) product_in_bf16(a_in, b_in, bias, c);
    return;
  }
  const Tensor a = cpu::without_f16(a_in), b = cpu::without_f16(b_in);
  const cpu::WholeInput bias_row(bias);
  const cpu::WholeOutput output(c);
  each_product(c, k, [&](int64_t i, bool parallel) {
    cpu::gemm(matrix_of(a, i), matrix_of(b, i), m, n, k,
              {.c = output.data() + i * m * n,
               .stride = n,
               .bias = bias_row.data(),
               .parallel = parallel});
  });
}

// Matrix products whose sums stay on a grid, with the SIMD kernel: a row of sums at a time.

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

sums::Extent extent_of(const Tensor& rows) {
  const int64_t width = rows.shape()[rows.rank() - 1];
  sums::Extent all;
  for (int64_t batch = 0; batch < (rows.rank() == 3 ? rows.size(0) : 1); ++batch)
    for (int64_t row = 0; row < rows.size(-2); ++row)
      simd_kernels().extend(floats_of_matrix(rows, batch) + row * rows.strides()[rows.rank() - 2],
                            width, all);
  return all;
}
}  // namespace

void CpuBackend::matmul_accumulating(const Tensor& a, const Tensor& b, const Tensor& bias,
                                     const Accumulator& accumulator, Tensor& c) {
  if (c.numel() == 0) return;
  if (!cpu::all_f32_or_short(a, b, bias, c))
    return ReferenceBackend::matmul_accumulating(a, b, bias, accumulator, c);
  const int64_t m = c.size(-2), n = c.size(-1), k = a.size(-1);
  const Grid grid = grid_of(accumulator.grid, accumulator.rounding);
  const Accumulator unit = sums::counting_scales(accumulator);
  const int64_t chunk = unit.chunk > 0 ? unit.chunk : std::max<int64_t>(k, 1);
  const Tensor left = float_rows(a), right = float_rows(b);
  const bool in_floats =
      sums::adds_in_floats(unit) && sums::fit_floats(unit, extent_of(left), extent_of(right));
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
      kernels.accumulate_on(unit, grid, in_floats, a_row + first, std::min(chunk, k - first),
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

// The loops over tiles. A panel of b stays in the first-level cache while all rows are multiplied.

namespace halftone::cpu {

void FloatBlocks::multiply(const float* a, const float* b, const BlockProduct& to) {
  const simd::Kernels& kernels = simd_kernels();
  const int64_t rows = kernels.tile_rows, columns = kernels.tile_columns;
  for (int64_t j = 0; j < to.n; j += columns)
    for (int64_t i = 0; i < to.m; i += rows)
      kernels.tile_product(to.k, to.chain, a + i * to.k, b + j * to.packed_depth, columns,
                           std::min(rows, to.m - i), std::min(columns, to.n - j), nullptr,
                           to.accumulate, to.c + i * to.stride + j, to.stride);
}

template <class Products>
void Bf16Blocks<Products>::multiply(const uint16_t* a, const uint16_t* b, const BlockProduct& to) {
  constexpr int64_t width = simd::panels::panel_width;
  const int64_t depth = units(to.k), b_depth = units(to.packed_depth);
  Products products;
  for (int64_t j = 0; j < to.n; j += width)
    for (int64_t i = 0; i < to.m; i += width) {
      float* c = to.c + i * to.stride + j;
      products.multiply(to.k, {.data = a + i * depth}, b + j * b_depth,
                        {.c = c,
                         .bf16 = false,
                         .stride = to.stride,
                         .rows = std::min(width, to.m - i),
                         .columns = std::min(width, to.n - j),
                         .accumulate = to.accumulate,
                         .near = true});
    }
}
template class Bf16Blocks<simd::panels::Products>;
template class Bf16Blocks<simd::amx::Products>;

}  // namespace halftone::cpu
