// Matrix products: f32 by the own kernel; bf16 by the own kernel for AMX and AVX512-BF16, or by
// oneDNN if that is faster; other short floats in f32, widened when they are packed; f64 by the
// reference.
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/gemm.h>
#include <halftone/backends/cpu/onednn/onednn.h>
#include <halftone/backends/cpu/staging.h>
#include <halftone/core/device.h>

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
  if (a_in.dtype() == bf16 && !portable_bits() && onednn::matmul(a_in, b_in, bias, c)) return;
  if (all_bf16 && has_bf16_products()) return product_in_bf16(a_in, b_in, bias, c);
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

}  // namespace halftone
