// Elementwise operations through the float kernels, for any strides and any mix of f32 and short
// floats. f64 goes to the reference, which computes in double.
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone {

void CpuBackend::unary(FormulaCall f, const Tensor& x, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y)) return ReferenceBackend::unary(f, x, y);
  cpu::staged(
      [f, &k = simd_kernels()](const float* a, float* out, int64_t n) { k.unary(f, a, out, n); }, y,
      x);
}

void CpuBackend::unary_backward(FormulaCall f, const Tensor& saved, const Tensor& dy, Tensor& dx) {
  if (!cpu::all_f32_or_short(saved, dy, dx))
    return ReferenceBackend::unary_backward(f, saved, dy, dx);
  cpu::staged([f, &k = simd_kernels()](const float* s, const float* g, float* out,
                                       int64_t n) { k.unary_backward(f, s, g, out, n); },
              dx, saved, dy);
}

void CpuBackend::binary(FormulaCall f, const Tensor& a, const Tensor& b, Tensor& y) {
  if (!cpu::all_f32_or_short(a, b, y)) return ReferenceBackend::binary(f, a, b, y);
  cpu::staged([f, &k = simd_kernels()](const float* l, const float* r, float* out,
                                       int64_t n) { k.binary(f, l, r, out, n); },
              y, a, b);
}

void CpuBackend::binary_backward(FormulaCall f, int input, const Tensor& a, const Tensor& b,
                                 const Tensor& dy, Tensor& dx) {
  if (!cpu::all_f32_or_short(a, b, dy, dx))
    return ReferenceBackend::binary_backward(f, input, a, b, dy, dx);
  const auto kernel = [f, input, &k = simd_kernels()](const float* l, const float* r,
                                                      const float* g, float* out, int64_t n) {
    k.binary_backward(f, input, l, r, g, out, n);
  };
  cpu::staged(kernel, dx, a, b, dy);
}

void CpuBackend::accumulate(const Tensor& x, Tensor& y) {
  binary(call_of<BinaryFormulas>(formula::Add{}), y, x, y);
  y.storage()->bump_version();
}

void CpuBackend::lerp(const Tensor& x, double weight, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y)) return ReferenceBackend::lerp(x, weight, y);
  const auto kernel = [w = float(weight), &k = simd_kernels()](const float* to, const float* from,
                                                               float* out, int64_t n) {
    if (out != from) std::copy_n(from, n, out);
    k.lerp(to, w, out, n);
  };
  cpu::staged(kernel, y, x, y);
  y.storage()->bump_version();
}

}  // namespace halftone
