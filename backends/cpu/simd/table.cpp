// The tables of this instruction set. The portable one shares the kernels that neither add floats
// in an order of their own nor contain a product that could be fused.
#include <halftone/backends/cpu/simd/local.h>

#ifdef HALFTONE_PORTABLE
namespace halftone::simd::HALFTONE_FAST_ISA {
void fill_short_formats(Kernels& table);
void fill_images(Kernels& table);
void fill_random(Kernels& table);
void fill_quantize(Kernels& table);
}  // namespace halftone::simd::HALFTONE_FAST_ISA
#endif

namespace halftone::simd::HALFTONE_ISA {

#ifdef HALFTONE_PORTABLE
using namespace HALFTONE_FAST_ISA;
#endif

static Kernels make_table() {
  Kernels table{};
  table.name = HALFTONE_ISA_NAME;
  fill_elementwise(table);
  fill_reductions(table);
  fill_rows(table);
  fill_channels(table);
  fill_training(table);
  fill_gemm(table);
  fill_short_formats(table);
  fill_images(table);
  fill_random(table);
  fill_quantize(table);
  return table;
}

const Kernels& kernels() {
  static const Kernels table = make_table();
  return table;
}

}  // namespace halftone::simd::HALFTONE_ISA
