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

void CpuBackend::compare(FormulaCall f, const Tensor& a, const Tensor& b, Tensor& y) {
  if (!cpu::all_f32_or_short(a, b)) return ReferenceBackend::compare(f, a, b, y);
  const cpu::LoopNest<3> nest(y, a, b);
  nest.parallel_runs([&, &k = simd_kernels()](const auto& at, const auto& steps, int64_t count) {
    alignas(64) float left[cpu::block_length], right[cpu::block_length];
    bool results[cpu::block_length];
    const bool direct = steps[0] == 1;
    k.compare(f, cpu::floats(a, at[1], steps[1], count, left),
              cpu::floats(b, at[2], steps[2], count, right),
              direct ? y.data<bool>() + at[0] : results, count);
    if (!direct) reference::store(results, count, y, at[0], steps[0]);
  });
}

namespace {
/// Returns elements of x as contiguous neighbors, in place or in `buffer`. T only has the element's
/// size.
template <class T>
const T* neighbors(const Tensor& x, int64_t offset, int64_t step, int64_t count, T* buffer) {
  const T* const from = reinterpret_cast<const T*>(x.raw_data()) + offset;
  if (step == 1) return from;
  if (step == 0) std::fill_n(buffer, count, *from);
  else
    for (int64_t i = 0; i < count; ++i) buffer[i] = from[i * step];
  return buffer;
}

template <class T, class Kernel>
void select_as(const Kernel& kernel, const Tensor& condition, const Tensor& a, const Tensor& b,
               Tensor& y) {
  const cpu::LoopNest<4> nest(y, condition, a, b);
  nest.parallel_runs([&](const auto& at, const auto& steps, int64_t count) {
    alignas(64) T first[cpu::block_length], second[cpu::block_length], results[cpu::block_length];
    bool chosen[cpu::block_length];
    T* const to = reinterpret_cast<T*>(y.raw_data()) + at[0];
    const bool direct = steps[0] == 1;
    kernel(neighbors(condition, at[1], steps[1], count, chosen),
           neighbors(a, at[2], steps[2], count, first),
           neighbors(b, at[3], steps[3], count, second), direct ? to : results, count);
    for (int64_t i = 0; !direct && i < count; ++i) to[i * steps[0]] = results[i];
  });
}
}  // namespace

void CpuBackend::select(const Tensor& condition, const Tensor& a, const Tensor& b, Tensor& y) {
  const bool alike = a.dtype() == y.dtype() && b.dtype() == y.dtype();
  if (condition.dtype() != boolean || !alike || !cpu::is_f32_or_short(y))
    return ReferenceBackend::select(condition, a, b, y);
  const simd::Kernels& k = simd_kernels();
  if (y.dtype() == f32) select_as<uint32_t>(k.select_words, condition, a, b, y);
  else select_as<uint16_t>(k.select_halves, condition, a, b, y);
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
