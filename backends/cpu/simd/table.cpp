// The table of this instruction set.
#include <halftone/backends/cpu/simd/local.h>

namespace halftone::simd::HALFTONE_ISA {

static Kernels make_table() {
  Kernels table{};
  table.name = HALFTONE_ISA_NAME;
  fill_bf16(table);
  fill_f16(table);
  fill_elementwise(table);
  fill_reductions(table);
  fill_rows(table);
  fill_channels(table);
  fill_images(table);
  fill_training(table);
  fill_random(table);
  fill_quantize(table);
  fill_gemm(table);
  return table;
}

const Kernels& kernels() {
  static const Kernels table = make_table();
  return table;
}

}  // namespace halftone::simd::HALFTONE_ISA
