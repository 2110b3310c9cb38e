// Dropout with the SIMD kernel; the mask equals the reference's, number for number.
#include <halftone/backends/cpu/cpu_backend.h>
#include <halftone/backends/cpu/staging.h>

namespace halftone {

void CpuBackend::dropout(const Tensor& x, double p, RandomKey key, Tensor& y) {
  if (!cpu::all_f32_or_short(x, y) || x.dtype() == f64 || p >= 1)
    return ReferenceBackend::dropout(x, p, key, y);
  const float scale = float(1 / (1 - p));
  cpu::parallel_pieces(
      x.numel(), reference::grain_length, [&, &k = simd_kernels()](int64_t begin, int64_t end) {
        alignas(64) float in[cpu::block_length], out[cpu::block_length];
        for (int64_t i = begin; i < end; i += cpu::block_length) {
          const int64_t n = std::min(cpu::block_length, end - i);
          cpu::Output output(y, i, 1, n, out);
          k.dropout(cpu::floats(x, i, 1, n, in), key.seed, 4 * key.offset + uint64_t(i), float(p),
                    scale, output.data(), n);
          output.finish();
        }
      });
}

}  // namespace halftone
