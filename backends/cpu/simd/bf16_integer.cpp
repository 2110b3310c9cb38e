// bf16 by integer arithmetic: it is the upper half of a float.
#include <halftone/backends/cpu/simd/local.h>
#include <halftone/core/dtype.h>

namespace halftone::simd::HALFTONE_ISA {

static void widen(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = __builtin_bit_cast(float, uint32_t(x[i]) << 16);
}
static void narrow(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = BFloat16::round(x[i]);
}

void fill_bf16(Kernels& table) { table.widen_bf16 = widen, table.narrow_bf16 = narrow; }

}  // namespace halftone::simd::HALFTONE_ISA
