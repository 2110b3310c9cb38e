// f16 without F16C: the conversions of core/dtype.h, element by element.
#include <halftone/backends/cpu/simd/local.h>
#include <halftone/core/dtype.h>

namespace halftone::simd::HALFTONE_ISA {

static void widen(const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = halftone::detail::widen_ieee_like<5, 10>(x[i]);
}
static void narrow(const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = halftone::detail::round_to_ieee_like<5, 10>(x[i]);
}

void fill_f16(Kernels& table) { table.widen_f16 = widen, table.narrow_f16 = narrow; }

}  // namespace halftone::simd::HALFTONE_ISA
